"""A refusal is repeated only where nothing can have become better since."""

from __future__ import annotations

import pytest

from app.engine.admission import HOLDS_S, Rejection
from app.engine.clock import ManualClock
from app.errors import Overloaded
from tests.unit.app.engine.harness import Rig, rig, turns, until

NOW, LEFT, DUE = 100.0, 0.5, 100.6
TEN_MS = {size: 0.010 * size for size in (1, 2, 4, 8)}


def refusal(left_s: float = LEFT) -> Rejection:
    return Rejection(NOW, left_s, DUE, waiting=8, running=2, clear_at=NOW + 0.7, message="no")


@pytest.mark.parametrize(
    ("now", "left_s", "deadline", "waiting", "running", "holds"),
    [
        (NOW, LEFT, DUE, 8, 2, True),
        (NOW + 0.9 * HOLDS_S, LEFT - 0.1, DUE + 1, 9, 3, True),
        (NOW + HOLDS_S, LEFT, DUE, 8, 2, False),  # too long ago
        (NOW, LEFT + 2 * HOLDS_S, DUE, 8, 2, False),  # may be in time
        (NOW, LEFT, DUE - 0.001, 8, 2, False),  # is due earlier
        (NOW, LEFT, DUE, 7, 2, False),  # one has left the queue
        (NOW, LEFT, DUE, 8, 1, False),  # a batch has ended
    ],
)
def test_rejection_applies_under_its_conditions(
    now: float, left_s: float, deadline: float, waiting: int, running: int, holds: bool
) -> None:
    assert refusal().holds(now, left_s, deadline, waiting, running) is holds


async def full(r: Rig) -> None:
    """One batch runs, five items wait: 60 ms."""
    r.backend.gate.clear()
    r.start(0)
    await until(lambda: bool(r.backend.batches))
    for number in (1, 2, 3, 4, 5):
        r.start(number, within=0.065)
    await turns()


async def test_rejection_repeats_with_the_true_time() -> None:
    async with rig(batch_s=TEN_MS, max_batch_size=8) as r:
        await full(r)
        assert isinstance(r.clock, ManualClock)
        with pytest.raises(Overloaded, match=" 66 ms deadline: 5 items are queued"):
            await r.ask(10, within=0.0658)
        r.clock.advance(0.0005)
        with pytest.raises(
            Overloaded, match=" 66 ms deadline: 5 items are queued"
        ) as refused:  # not 65: it held
            await r.ask(11, within=0.0654)
        assert refused.value.retry_after_s == pytest.approx(0.0595)
        r.clock.advance(0.001)
        with pytest.raises(Overloaded, match=" 64 ms deadline: 5 items are queued") as refused:
            await r.ask(12, within=0.0644)
        assert refused.value.retry_after_s == pytest.approx(0.0585)
        r.backend.gate.set()
