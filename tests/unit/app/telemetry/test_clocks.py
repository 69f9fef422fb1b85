"""The offset between the clocks holds on a busy machine."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from app.telemetry import clocks

if TYPE_CHECKING:
    import pytest

DAY_NS = 1_700_000_000 * 10**9


def test_a_stall_between_two_readings_does_not_shift_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now, stalls = 5_000, itertools.chain([0, 40_000_000, 0], itertools.repeat(100))

    def counter() -> int:
        nonlocal now
        now += next(stalls)
        return now

    monkeypatch.setattr("time.perf_counter_ns", counter)
    monkeypatch.setattr("time.time_ns", lambda: now + DAY_NS)
    assert abs(clocks.day_offset_ns() - DAY_NS) <= 100


def test_the_closest_of_some_is_taken_where_all_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now, steps = 0, itertools.chain(*([0, took] for took in (9e6, 8e6, 1e6, 7e6, 6e6)))

    def counter() -> int:
        nonlocal now
        now += int(next(steps))
        return now

    monkeypatch.setattr("time.perf_counter_ns", counter)
    monkeypatch.setattr("time.time_ns", lambda: now + DAY_NS)
    assert clocks.day_offset_ns() == DAY_NS - 500_000
