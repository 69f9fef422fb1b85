"""A clock for measurements: it runs only during calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

TRIES, PATIENCE = 4, 3  # of the package; in other tests measurements are impatient


class Stopwatch:
    """The clock that `models.timing` reads, until the test ends; the real machine is not seen.

    Attributes:
        now: seconds; set by what works.
        waited_s: how much of them this thread was kept waiting for a core; see `waited`.
        calls: names of the calls, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.waited_s = 0.0
        self.calls: list[str] = []
        monkeypatch.setattr("models.timing.TRIES", TRIES)
        monkeypatch.setattr("models.timing.PATIENCE", PATIENCE)
        monkeypatch.setattr("models.timing.time", SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr("models.timing.this_thread", self.waited)
        monkeypatch.setattr("models.timing.all_threads", self.waited)
        monkeypatch.setattr("models.system.cores.STAT", Path("/none"))

    def work(self, name: str, *durations_s: float) -> Callable[[], None]:
        """Takes the given times in turn, then the last one for ever."""
        return self.kept_waiting(name, *((duration_s, 0.0) for duration_s in durations_s))

    def kept_waiting(self, name: str, *pairs: tuple[float, float]) -> Callable[[], None]:
        """Computes and waits for a core for these times in turn, then repeats the last one."""
        pending = list(pairs)

        def run() -> None:
            self.calls.append(name)
            works_s, waits_s = pending.pop(0) if len(pending) > 1 else pending[0]
            self.now += works_s + waits_s
            self.waited_s += waits_s

        return run

    def waited(self) -> dict[int, int]:
        """What Linux would have counted."""
        return {1: round(self.waited_s * 1e9)}
