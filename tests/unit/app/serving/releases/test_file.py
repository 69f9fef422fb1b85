"""The file with the stages of releases: written as a whole, and never over a damaged one."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from app.registry.releases import Phase, Release, Stage
from app.serving.releases import file as release_file
from app.serving.releases.file import ReleaseFile, ReleaseFileError, Stages

RELEASE = Release.model_validate({"to": 3, "from": 2, "stop_if": {"latency_above": 1.5}})
STAGE = Stage(release=RELEASE, old=2, phase=Phase.ROLLED_BACK, since=1.5, step=2, reason="slow")


@pytest.fixture
def file(tmp_path: Path) -> ReleaseFile:
    return ReleaseFile(tmp_path / "models.toml")


def test_what_is_written_is_read(file: ReleaseFile) -> None:
    assert file.read() == {}
    assert file.change(lambda _: {"m": STAGE}) == {"m": STAGE}
    assert file.path.name == "models.toml.releases.json"
    assert ReleaseFile(file.path.with_name("models.toml")).read() == {"m": STAGE}


def test_a_change_begins_with_what_another_process_wrote(file: ReleaseFile) -> None:
    other = ReleaseFile(file.path.with_name("models.toml"))
    other.change(lambda _: {"a": STAGE})

    def more(stages: Stages) -> Stages:
        return {**stages, "b": STAGE}

    assert set(file.change(more)) == {"a", "b"}
    assert set(other.read()) == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "EOF"),
        ("[]", "should be an object"),
        ('{"m": {}}', "m: release: Field required"),
        ('{"m": {"release": {"to": 3}, "old": 2, "since": 1, "step": 9}}', "no such step"),
        ('{"m": {"release": {"to": 3}, "old": 2, "since": 1, "phase": "off"}}', "m: phase: "),
    ],
)
def test_a_damaged_file_stays_as_it_is(file: ReleaseFile, text: str, says: str) -> None:
    file.path.write_text(text)
    for attempt in (file.read, lambda: file.change(lambda _: {"m": STAGE})):
        with pytest.raises(ReleaseFileError, match=says) as raised:
            attempt()
        assert "delete it, and releases begin anew" in str(raised.value)
    assert file.path.read_text() == text


def test_a_pipe_in_its_place_is_refused(file: ReleaseFile) -> None:
    os.mkfifo(file.path)
    with pytest.raises(ReleaseFileError, match="not a regular file"):
        file.read()


def test_a_lock_that_stays_held_is_an_error(
    file: ReleaseFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_file, "LOCK_S", 0.0)
    file.change(lambda _: {"m": STAGE})
    with file.path.with_name("models.toml.releases.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            file.change(lambda _: {})
    assert file.change(lambda _: {}) == {}
