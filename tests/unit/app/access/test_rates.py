"""How many items fit into a time, and when more fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access.entries import parse_limits
from app.access.rates import Rates
from app.access.windows import MAX_COUNTS, WindowStorage
from app.engine.clock import ManualClock
from app.errors import PayloadTooLarge, RateLimited


class Rig:
    """Callers with one limit, and a manual clock."""

    def __init__(self, limit: str) -> None:
        self.clock = ManualClock()
        self.limits = parse_limits(limit)
        self.rates = Rates(self.clock.now)

    def rejected(self, items: int = 1, caller: str = "a", total: int | None = None) -> float | None:
        """Seconds to wait; None: it was let through."""
        try:
            self.rates.spend(caller, self.limits, items, items if total is None else total)
        except RateLimited as error:
            return error.retry_after_s
        return None


def test_callers_have_separate_limits() -> None:
    rig = Rig("1/second")
    assert rig.rejected(caller="a") is None
    assert rig.rejected(caller="b") is None
    assert rig.rejected(caller="a")


def test_batch_counts_each_item() -> None:
    rig = Rig("10/second")
    assert rig.rejected(8) is None
    assert rig.rejected(3)
    assert rig.rejected(2) is None


def test_rejected_requests_are_not_counted() -> None:
    rig = Rig("10/second")
    assert rig.rejected(8) is None
    for _ in range(5):
        assert rig.rejected(9)
    assert rig.rejected(2) is None


def test_batch_above_the_limit_is_too_large() -> None:
    rig = Rig("10/second")
    with pytest.raises(PayloadTooLarge, match="send at most 10 at once"):
        rig.rejected(10, total=11)
    assert rig.rejected(10) is None


def test_rejection_by_one_limit_counts_in_none() -> None:
    rig = Rig("2/second, 3/minute")
    assert rig.rejected(2) is None
    rig.clock.advance(2)
    assert rig.rejected(2)  # the minute's
    assert rig.rejected(1) is None
    assert rig.rejected(1)


@given(
    limit=st.sampled_from(["1/second", "7/second", "100/5 second", "1000/minute"]),
    steps=st.lists(st.tuples(st.integers(1, 60), st.floats(0, 3)), min_size=1, max_size=40),
)
def test_waiting_for_retry_after_suffices(limit: str, steps: list[tuple[int, float]]) -> None:
    rig = Rig(limit)
    most = rig.limits[0].amount
    for items, pause_s in steps:
        wanted = min(items, most)
        wait_s = rig.rejected(wanted)
        if wait_s is not None:
            assert wait_s > 0
            rig.clock.advance(max(0.0, wait_s - 0.01))
            assert wait_s < 0.01 or rig.rejected(wanted) is not None
            rig.clock.advance(min(wait_s, 0.01))
            assert rig.rejected(wanted) is None
        rig.clock.advance(pause_s)


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 0.4)), min_size=1, max_size=80))
def test_any_window_admits_less_than_twice_the_limit(steps: list[tuple[int, float]]) -> None:
    rig = Rig("10/second")
    let_through: list[tuple[float, int]] = []
    for items, pause_s in steps:
        if rig.rejected(items) is None:
            let_through.append((rig.clock.now(), items))
        rig.clock.advance(pause_s)
    for start, _ in let_through:
        assert sum(n for at, n in let_through if start <= at < start + 1) < 20


def test_number_of_counts_is_limited_by_lru() -> None:
    storage = WindowStorage(ManualClock().now)
    for number in range(MAX_COUNTS):
        assert storage.acquire_sliding_window_entry(f"{number}", 2, 60)
    assert storage.acquire_sliding_window_entry("0", 2, 60)  # used again
    assert storage.acquire_sliding_window_entry("new", 1, 60)
    assert storage.reset() == MAX_COUNTS
    for number in range(MAX_COUNTS):
        storage.acquire_sliding_window_entry(f"{number}", 1, 60)
    storage.acquire_sliding_window_entry("new", 1, 60)
    assert not storage.acquire_sliding_window_entry("1", 1, 60)
    assert storage.acquire_sliding_window_entry("0", 1, 60)


def test_counts_can_be_cleared() -> None:
    clock = ManualClock()
    storage = WindowStorage(clock.now)
    for key in "abc":
        assert storage.acquire_sliding_window_entry(key, 1, 60)
        assert not storage.acquire_sliding_window_entry(key, 1, 60)
    storage.clear("a")
    storage.clear_sliding_window("b", 60)
    assert storage.acquire_sliding_window_entry("a", 1, 60)
    assert storage.acquire_sliding_window_entry("b", 1, 60)
    assert storage.check()
    assert storage.reset() == 3
    assert storage.acquire_sliding_window_entry("c", 1, 60)
