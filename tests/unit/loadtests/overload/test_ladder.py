"""What a server holds, found by offering less and less."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadtests.overload.ladder import LADDER, NotHeld, capacity
from loadtests.overload.loads import Load
from tests.unit.loadtests.overload.made import load

CLOSED_PER_S = 1000.0


def server(answers: Callable[[float], float]) -> tuple[Callable[[float], Load], list[float]]:
    """One of which so many per second are answered in time, by what is offered per second."""
    shares: list[float] = []

    def offer(share: float) -> Load:
        shares.append(share)
        offered = share * CLOSED_PER_S
        return load(share, offered_per_s=offered, in_time=round(answers(offered)))

    return offer, shares


def refuses_for_nothing(holds_per_s: float) -> Callable[[float], float]:
    return lambda offered: min(offered, holds_per_s)


def refuses_at(cost: float, holds_per_s: float) -> Callable[[float], float]:
    """A refusal takes that share of the time of an answer."""
    return lambda offered: (
        offered if offered <= holds_per_s else max(0.0, (holds_per_s - cost * offered) / (1 - cost))
    )


def collapses(holds_per_s: float) -> Callable[[float], float]:
    return lambda offered: offered if offered <= holds_per_s else 0.0


def test_who_answers_in_time_what_a_closed_loop_had_is_asked_once() -> None:
    offer, shares = server(refuses_for_nothing(920.0))
    found, tried = capacity(CLOSED_PER_S, offer)
    assert found == CLOSED_PER_S
    assert [each.offer.times for each in tried] == [1.0]
    assert shares == [1.0]


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        (refuses_for_nothing(700.0), 700.0),
        (refuses_at(0.4, 500.0), 500.0),
        (collapses(600.0), 500.0),  # the next rate below it that is tried
        (collapses(210.0), 200.0),
    ],
)
def test_else_the_most_that_came_in_time(answers: Callable[[float], float], found: float) -> None:
    offer, shares = server(answers)
    assert capacity(CLOSED_PER_S, offer)[0] == pytest.approx(found, rel=0.01)
    assert shares == list(LADDER[: len(shares)])
    assert shares[-1] * CLOSED_PER_S * 0.9 <= found  # and no rate below one that was held


def test_who_holds_nothing_has_no_capacity() -> None:
    offer, shares = server(lambda _: 0.0)
    with pytest.raises(NotHeld, match="not even 20% of a closed loop's 1,000/s"):
        capacity(CLOSED_PER_S, offer)
    assert shares == list(LADDER)


def test_what_could_not_be_offered_is_no_capacity() -> None:
    def offer(share: float) -> Load:
        offered = share * CLOSED_PER_S
        return load(share, offered_per_s=offered, in_time=round(min(offered, 700)), starved=1)

    with pytest.raises(NotHeld, match="1 requests found no connection free"):
        capacity(CLOSED_PER_S, offer)
