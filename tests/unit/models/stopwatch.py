"""A clock for what measures forms: it runs only while somebody works."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest


class Stopwatch:
    """It is what `models.plan` reads, until the test ends.

    Attributes:
        now: seconds; set by what works.
        calls: who worked, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        monkeypatch.setattr("models.plan.time", SimpleNamespace(perf_counter=lambda: self.now))

    def work(self, name: str, *durations_s: float) -> Callable[[], None]:
        """Takes the given times in turn, then the last one for ever."""
        pending = list(durations_s)

        def run() -> None:
            self.calls.append(name)
            self.now += pending.pop(0) if len(pending) > 1 else pending[0]

        return run
