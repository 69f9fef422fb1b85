"""The search against servers whose capacity is known."""

from __future__ import annotations

import pytest

from loadtests.capacity.search import CapacityEstimate, Lengths, Search, TrialStep

HIGHEST = 20_000


def searched(
    capacity: float, served_per_s: float, budget_s: float = 120.0
) -> tuple[CapacityEstimate, list[TrialStep]]:
    """Search from 100/s; above its capacity the server rejects the rest."""
    lengths, left_s, steps = Lengths.within(budget_s), budget_s, list[TrialStep]()
    search = Search(lengths, start_per_s=100, lowest_per_s=1, highest_per_s=HIGHEST)
    step: TrialStep | None = search.warm_up()
    while step is not None:
        steps.append(step)
        passed = step.rate_per_s <= capacity
        served = step.rate_per_s if passed else served_per_s
        search.record(step, passed, served, lengths.settle_s + step.seconds)
        left_s -= lengths.settle_s + step.seconds
        step = search.next_step(left_s)
    return search.answer(), steps


@pytest.mark.parametrize(
    ("capacity", "served_per_s"), [(8000, 300.0), (50, 5.0), (50, 0.0), (3, 1.5)]
)
@pytest.mark.parametrize("budget_s", [20.0, 120.0])
def test_capacity_is_found_despite_collapse_under_overload(
    capacity: int, served_per_s: float, budget_s: float
) -> None:
    answer, _ = searched(capacity, served_per_s, budget_s)
    assert answer.capacity_per_s == pytest.approx(capacity, rel=0.1)


def test_server_too_slow_at_any_rate_has_no_capacity() -> None:
    answer, steps = searched(0, 0.5)
    assert answer.capacity_per_s is None
    assert not answer.confirmed
    assert min(step.rate_per_s for step in steps) == pytest.approx(1)


def test_search_without_overload_ends_at_the_highest_rate() -> None:
    answer, steps = searched(1e9, 0)
    assert answer.capacity_per_s == HIGHEST
    assert answer.confirmed  # by a long trial at the highest rate, and not only by a probe
    assert steps[-1].kind == "confirm"
