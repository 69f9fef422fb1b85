"""The recorder: operators of threads that were there before it, part by part."""

from __future__ import annotations

import resource
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from app.backends.profiler import TorchRecorder
from app.errors import NotRecorded

X = torch.randn(3, 3)


class Worker:
    """Counts the products that its thread has computed, one after each `go`."""

    def __init__(self) -> None:
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._stopped = False
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def compute(self, times: int = 1) -> None:
        for _ in range(times):
            self._go.release()
            assert self._done.acquire(timeout=20)

    def end(self) -> None:
        self._stopped = True
        self._go.release()
        self.thread.join()

    def _work(self) -> None:
        while self._go.acquire() and not self._stopped:
            torch.mm(X, X)
            self._done.release()


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.end()


@contextmanager
def recording() -> Iterator[TorchRecorder]:
    recorder = TorchRecorder()
    recorder.start()
    yield recorder


def products(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == "aten::mm"]


def test_existing_threads_are_recorded(worker: Worker, capfd: pytest.CaptureFixture[str]) -> None:
    worker.compute()
    before_ns = time.time_ns()
    with recording() as recorder:
        worker.compute(3)
        recorded = recorder.stop()
    after_ns = time.time_ns()
    worker.compute()
    found = products(recorded(before_ns))
    assert [event["tid"] for event in found] == [worker.thread.native_id] * 3
    for event in found:
        assert 0 < event["ts"] < event["ts"] + event["dur"] < (after_ns - before_ns) / 1000
        assert event.keys() == {"ph", "cat", "name", "pid", "tid", "ts", "dur"}
    assert capfd.readouterr() == ("", "")


def test_each_part_has_its_own_events(worker: Worker) -> None:
    recorder = TorchRecorder()
    recorder.start()
    parts = []
    for count in range(5):
        worker.compute(count)
        parts.append(recorder.next())
    worker.compute(7)
    parts.append(recorder.stop())
    # Read late, and not in order.
    assert [len(products(part(0))) for part in reversed(parts)] == [7, 4, 3, 2, 1, 0]


def test_nothing_is_recorded_before_or_after(worker: Worker) -> None:
    worker.compute(2)
    recorder = TorchRecorder()
    recorder.start()
    enabled = [torch.autograd.profiler._is_profiler_enabled]
    recorded = recorder.stop()
    assert [*enabled, torch.autograd.profiler._is_profiler_enabled] == [True, False]
    worker.compute(2)
    assert products(recorded(0)) == []


def test_recorder_can_be_reused(worker: Worker) -> None:
    recorder = TorchRecorder()
    for _ in range(3):
        recorder.start()
        worker.compute()
        assert len(products(recorder.stop()(0))) == 1


@pytest.mark.parametrize("folder", ["full", "missing"])
def test_unusable_temporary_folder_is_an_error(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    with recording() as recorder:
        worker.compute(100)
        recorded = recorder.next()
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path if folder == "full" else tmp_path / "none")
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(NotRecorded, match=r"temporary folder .*set TMPDIR"):
            recorded(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_stopping_without_a_start_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="bug: no recording is running"):
        TorchRecorder().stop()


def test_starting_twice_is_a_bug() -> None:
    with recording() as recorder:
        with pytest.raises(RuntimeError, match="bug: a recording is already running"):
            recorder.start()
        recorder.stop()
