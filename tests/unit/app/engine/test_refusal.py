"""A refusal is repeated only where nothing can have become better since."""

from __future__ import annotations

import pytest

from app.engine.clock import ManualClock
from app.engine.refusal import HOLDS_S, Refusal
from app.errors import Overloaded
from tests.unit.app.engine.harness import Rig, rig, turns, until, values

NOW, LEFT, DUE = 100.0, 0.5, 100.6
TEN_MS = {size: 0.010 * size for size in (1, 2, 4, 8)}


def refusal(left_s: float = LEFT) -> Refusal:
    return Refusal(NOW, left_s, DUE, waiting=8, running=2, clear_at=NOW + 0.7, message="no")


@pytest.mark.parametrize(
    ("now", "left_s", "deadline", "waiting", "running", "holds"),
    [
        (NOW, LEFT, DUE, 8, 2, True),
        (NOW + 0.9 * HOLDS_S, LEFT - 0.1, DUE + 1, 9, 3, True),
        (NOW + HOLDS_S, LEFT, DUE, 8, 2, False),  # too long ago
        (NOW, LEFT + 2 * HOLDS_S, DUE, 8, 2, False),  # may be in time
        (NOW, LEFT, DUE - 0.001, 8, 2, False),  # goes ahead of who was refused
        (NOW, LEFT, DUE, 7, 2, False),  # one has left the queue
        (NOW, LEFT, DUE, 8, 1, False),  # a batch has ended
    ],
)
def test_when_it_holds(
    now: float, left_s: float, deadline: float, waiting: int, running: int, holds: bool
) -> None:
    assert refusal().holds(now, left_s, deadline, waiting, running) is holds


def test_of_short_times_it_holds_for_shorter() -> None:
    short = refusal(0.010)
    assert short.holds(NOW + 0.00009, 0.010, DUE, 8, 2)
    assert not short.holds(NOW + 0.00011, 0.010, DUE, 8, 2)
    assert not short.holds(NOW, 0.0102, DUE, 8, 2)


def test_without_any_time_left_it_matters_not_how_much() -> None:
    late = refusal(-0.2)
    assert late.holds(NOW + 0.0009, -0.1, DUE, 8, 2)
    assert not late.holds(NOW, 0.001, DUE, 8, 2)


async def full(r: Rig) -> None:
    """One batch runs, five items wait: 60 ms."""
    r.backend.gate.clear()
    r.start(0)
    await until(lambda: bool(r.backend.batches))
    for number in (1, 2, 3, 4, 5):
        r.start(number, within=0.065)
    await turns()


async def test_a_flood_is_foreseen_once_and_told_the_truth() -> None:
    async with rig(batch_s=TEN_MS, max_batch_size=8) as r:
        await full(r)
        clock = r.clock
        assert isinstance(clock, ManualClock)
        (line,) = r.engine._dispatcher.lines.values()
        told, foreseen = [], set()
        for number in range(10, 30):
            with pytest.raises(Overloaded, match="65 ms: 5 items wait") as refused:
                await r.ask(number, within=0.065)
            told.append(refused.value.retry_after_s)
            foreseen.add(line.refused)
            clock.advance(0.00005)
        assert told == pytest.approx([0.060 - 0.00005 * n for n in range(20)])
        assert len(foreseen) == 2  # the first one, and 0.6 ms later the next
        r.backend.gate.set()


async def test_who_has_more_time_is_not_refused_by_it() -> None:
    async with rig(batch_s=TEN_MS, max_batch_size=8) as r:
        await full(r)
        with pytest.raises(Overloaded):
            await r.ask(6, within=0.065)
        waits = r.start(7, within=0.5)
        await turns()
        r.backend.gate.set()
        assert values(await waits) == [14]


async def test_nor_who_comes_when_all_is_done() -> None:
    async with rig(batch_s=TEN_MS, max_batch_size=8) as r:
        await full(r)
        with pytest.raises(Overloaded):
            await r.ask(6, within=0.065)
        r.backend.gate.set()
        await until(lambda: r.metric("torchlane_items_computed_total") == 6)
        assert await r.ask(6, within=0.065) == [12]  # at the very same moment
