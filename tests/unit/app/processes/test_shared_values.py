"""Values of metrics in files: what is merged, what a later process continues."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from app.processes.shared_values import OwnValues, Value, forget_gauges, merged
from app.shared_file import SharedFile


@pytest.fixture
def files() -> Iterator[list[SharedFile]]:
    made = [SharedFile.create() for _ in range(2)]
    yield made
    for each in made:
        each.close()


def gauge(own: OwnValues, name: str, mode: str, value: float) -> None:
    own.value("gauge", name, name, (), (), "", multiprocess_mode=mode).set(value)


def counter(own: OwnValues, label: str = "a") -> Value:
    return own.value("counter", "made", "made_total", ("by",), (label,), "")


@pytest.mark.parametrize(("mode", "wanted"), [("livesum", 7), ("livemax", 5), ("livemin", 2)])
def test_gauges_are_merged_by_their_mode(files: list[SharedFile], mode: str, wanted: float) -> None:
    for file, value in zip(files, (2.0, 5.0), strict=True):
        own = OwnValues(file)
        gauge(own, "depth", mode, value)
        own.write()
    ((sample,),) = merged(files).values()
    assert (sample.name, sample.labels, sample.value) == ("depth", {}, wanted)


@pytest.mark.parametrize("label", ["", "seven b", "eight by", "Käse\n", '"}]'])
def test_any_label_is_read_as_it_was_written(files: list[SharedFile], label: str) -> None:
    own = OwnValues(files[0])
    counter(own, "before").inc(1)
    counter(own, label).inc(2)
    counter(own, "after").inc(3)
    own.write()
    (samples,) = merged(files).values()
    assert [(each.labels["by"], each.value) for each in samples] == [
        ("before", 1),
        (label, 2),
        ("after", 3),
    ]


def test_a_later_process_continues_the_counts_only(files: list[SharedFile]) -> None:
    earlier = OwnValues(files[0])
    counter(earlier).inc(4)
    gauge(earlier, "depth", "livesum", float("nan"))
    earlier.write()
    assert set(merged(files)) == {"made", "depth"}
    forget_gauges(files[0])
    assert set(merged(files)) == {"made"}
    later = OwnValues(files[0])
    counter(later).inc(1)
    later.write()
    ((sample,),) = merged(files).values()
    assert sample.value == 5
    gauge(later, "depth", "livesum", 3.0)
    later.write()
    assert merged(files)["depth"][0].value == 3


def test_reader_in_the_middle_of_a_write_finds_whole_entries(files: list[SharedFile]) -> None:
    own = OwnValues(files[0])
    counter(own).inc(1)
    own.write()
    before = files[0].read()
    counter(own, "another").inc(1)
    own.write()
    files[0].write(before[:8])  # the length is written last
    (samples,) = merged(files).values()
    assert [each.labels["by"] for each in samples] == ["a"]
    later = OwnValues(files[0])  # of a process that ended then
    counter(later, "third").inc(3)
    later.write()
    (samples,) = merged(files).values()
    assert [(each.labels["by"], each.value) for each in samples] == [("a", 1), ("third", 3)]


def test_a_full_disk_is_logged_once_and_loses_nothing(
    files: list[SharedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = OwnValues(files[0])
    counter(own).inc(1)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as during, capture_logs() as logs:
        during.setattr(os, "pwrite", full)
        own.write()
        own.write()
    assert [each["event"] for each in logs] == ["metrics_not_written"]
    own.write()
    assert merged(files)["made"][0].value == 1
