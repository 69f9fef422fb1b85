"""The offset between the clocks holds on a busy machine."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from app.telemetry import clocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

DAY_NS = 1_700_000_000 * 10**9


def test_stall_between_readings_does_not_shift_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_clocks(monkeypatch, itertools.chain([5_000, 40_000_000, 0], itertools.repeat(100)))
    assert abs(clocks.day_offset_ns() - DAY_NS) <= 100


def test_closest_of_slow_readings_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    took_ns = (9_000_000, 8_000_000, 1_000_000, 7_000_000, 6_000_000)
    _set_clocks(monkeypatch, itertools.chain.from_iterable((0, each) for each in took_ns))
    assert clocks.day_offset_ns() == DAY_NS - 500_000


def _set_clocks(monkeypatch: pytest.MonkeyPatch, steps_ns: Iterable[int]) -> None:
    """Each reading of the counter comes a step after the last one; the day goes on with it."""
    now, steps = 0, iter(steps_ns)

    def counter() -> int:
        nonlocal now
        now += next(steps)
        return now

    monkeypatch.setattr("time.perf_counter_ns", counter)
    monkeypatch.setattr("time.time_ns", lambda: now + DAY_NS)
