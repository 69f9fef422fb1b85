"""Placement: what is set is done, the rest is measured where there is a choice."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.registry.model_settings import ModelSettings
from app.registry.repository import Repository
from app.serving import placement as module
from app.serving.cpu_layout import Layout, layouts
from app.serving.placement import Placement, Trial, cores_of, measured_layout, place
from app.serving.version_policy import VersionPolicy
from app.types import Device
from models.cores import CoreTime
from models.packages import Packages
from tests.artifacts import write_artifact, write_small

CPU, GPU = Device("cpu"), Device("cuda", 0)
MEASURED = Layout(2, 3)


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cores(monkeypatch, 8)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def set_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr("app.backends.devices.usable_cores", lambda: cores)
    monkeypatch.setattr("app.serving.placement.usable_cores", lambda: cores)


def unasked(_: threading.Event) -> Layout:
    raise AssertionError("nothing is to be measured")


def test_by_default_it_is_measured() -> None:
    assert place("auto", None, None, 1, lambda _: MEASURED) == Placement((CPU, CPU), 3)


@pytest.mark.parametrize(
    ("spec", "per_device", "threads", "processes", "wanted"),
    [
        ("cpu", None, None, 1, Placement((CPU,), 7)),
        ("cpu*2", None, None, 1, Placement((CPU, CPU), 3)),
        ("cpu,cpu", None, 2, 1, Placement((CPU, CPU), 2)),
        ("auto", 1, None, 1, Placement((CPU,), 7)),
        ("auto", 2, None, 1, Placement((CPU, CPU), 3)),
        ("auto", None, 5, 1, Placement((CPU,), 5)),
        (
            "auto",
            None,
            None,
            2,
            Placement((CPU,), 3, near_memory=False),
        ),  # they would measure each other
    ],
)
def test_what_is_set_is_done_and_nothing_measured(
    spec: str, per_device: int | None, threads: int | None, processes: int, wanted: Placement
) -> None:
    assert place(spec, per_device, threads, processes, unasked) == wanted


def test_on_one_core_there_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cores(monkeypatch, 1)
    assert place("auto", None, None, 1, unasked) == Placement((CPU,), 1)


def test_a_failed_measurement_keeps_the_default_and_is_logged() -> None:
    def broken(_: threading.Event) -> Layout:
        raise RuntimeError("the model 'mine' fails")

    with capture_logs() as logs:
        assert place("auto", None, None, 1, broken) == Placement((CPU,), 7)
    assert logs[0]["event"] == "cpu_layout_not_measured"
    assert logs[0]["reason"] == "RuntimeError: the model 'mine' fails"
    assert logs[0]["log_level"] == "warning"


def test_a_model_that_hangs_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.05)
    gate, stopped = threading.Event(), list[bool]()

    def hangs(stop: threading.Event) -> Layout:
        gate.wait(30)
        stopped.append(stop.wait(30))
        return MEASURED

    with capture_logs() as logs:
        assert place("auto", None, None, 1, hangs) == Placement((CPU,), 7)
    gate.set()
    assert "longer than 0.05 s" in logs[0]["reason"]
    waited_until = time.monotonic() + 10
    while not stopped and time.monotonic() < waited_until:
        time.sleep(0.01)
    assert stopped == [True]  # should it come back, it goes no further


NODES = (frozenset({0, 1}), frozenset({2, 3}))
UNEVEN = (frozenset({0, 1, 2, 3, 4, 5}), frozenset({8}))


@pytest.mark.parametrize(
    ("nodes", "layout", "wanted"),
    [
        (NODES, Layout(4, 1), [NODES[0], NODES[1], NODES[0], NODES[1]]),
        (NODES, Layout(2, 2), [*NODES]),
        (NODES, Layout(1, 2), [None]),  # alone it may have all memory near
        (NODES, Layout(2, 3), [None, None]),  # does not fit
        (NODES, Layout(3, 2), [None, None, None]),  # two of them would share a node
        (UNEVEN, Layout(6, 1), [UNEVEN[0]] * 6),  # the small one is as good when it is its turn
        (UNEVEN, Layout(2, 3), [UNEVEN[0], UNEVEN[0]]),
        (NODES[:1], Layout(2, 1), [None, None]),
        ((), Layout(2, 1), [None, None]),
    ],
)
def test_replicas_are_kept_to_nodes_where_they_fit(
    monkeypatch: pytest.MonkeyPatch,
    nodes: tuple[frozenset[int], ...],
    layout: Layout,
    wanted: list[frozenset[int] | None],
) -> None:
    monkeypatch.setattr(module, "numa_nodes", lambda: nodes)
    assert [cores_of(replica, layout) for replica in range(layout.replicas)] == wanted


def test_a_gpu_between_cpu_replicas_takes_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, object]] = []
    monkeypatch.setattr(module, "numa_nodes", lambda: NODES)
    monkeypatch.setattr(module, "compute_with", lambda n, cores=None: seen.append((n, cores)))
    placement = Placement((CPU, GPU, CPU), 2)
    for replica in range(3):
        placement.begin(replica)()
    assert seen == [(2, NODES[0]), (2, None), (2, NODES[1])]


def measured(root: Path, default: str | None = None, versions: str = "latest") -> Layout:
    settings = ModelSettings(max_batch_size=8)
    trial = Trial(default, VersionPolicy.parse(versions), lambda _: settings)
    return measured_layout(Repository(root), trial, Packages(), threading.Event())


def test_a_model_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.serving.placement.usable_cores", lambda: 2)
    monkeypatch.setattr("app.serving.cpu_layout.SLICE_S", 0.001)
    monkeypatch.setattr("app.serving.cpu_layout.core_time", CoreTime)  # no other process is at work
    write_artifact(tmp_path, "double")
    with capture_logs() as logs:
        assert measured(tmp_path) in layouts(2, 2)
    told = next(log for log in logs if log["event"] == "cpu_layout_measured")
    assert set(told["items_per_s"]) == {"1 x 1", "2 x 1", "1 x 2"}
    assert all(log["log_level"] == "info" for log in logs)  # it serves no requests


def test_memory_bounds_the_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.serving.placement.usable_cores", lambda: 2)
    monkeypatch.setattr("app.serving.placement.memory_left_bytes", lambda: 1)
    monkeypatch.setattr("app.serving.cpu_layout.SLICE_S", 0.001)
    monkeypatch.setattr("app.serving.cpu_layout.core_time", CoreTime)  # no other process is at work
    write_artifact(tmp_path, "double")
    with capture_logs() as logs:
        assert measured(tmp_path).replicas == 1
    assert set(logs[-1]["items_per_s"]) == {"1 x 1", "1 x 2"}


def test_there_is_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no intact model"):
        measured(tmp_path)
    write_artifact(tmp_path, "double")
    with pytest.raises(LookupError, match="no version of 'other'"):
        measured(tmp_path, "other")


def test_a_damaged_version_gives_way_to_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.serving.placement.usable_cores", lambda: 2)
    monkeypatch.setattr("app.serving.cpu_layout.SLICE_S", 0.001)
    monkeypatch.setattr("app.serving.cpu_layout.core_time", CoreTime)  # no other process is at work
    write_artifact(tmp_path, "double")
    (write_artifact(tmp_path, "double", 2) / "script.pt").write_bytes(b"damaged")
    assert measured(tmp_path) in layouts(2, 2)


def test_without_a_default_the_largest_intact_model_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.serving.placement.usable_cores", lambda: 2)
    monkeypatch.setattr("app.serving.cpu_layout.SLICE_S", 0.001)
    monkeypatch.setattr("app.serving.cpu_layout.core_time", CoreTime)  # no other process is at work
    write_artifact(tmp_path, "alpha")
    write_small(tmp_path, ["script"])
    (write_artifact(tmp_path, "damaged") / "script.pt").write_bytes(b"damaged" * 100_000)
    with capture_logs() as logs:
        measured(tmp_path)
    measured_models = [log["model"] for log in logs if log["event"] == "measuring_cpu_layout"]
    assert measured_models == ["small/1"]
