"""Requests whose items are still being decoded: expected first, supplied later."""

from __future__ import annotations

import pytest

from app.engine.submission import Submission
from app.errors import Abandoned, DeadlineExceeded, InvalidInput, Overloaded
from tests.unit.app.engine.harness import FAR, MODEL, Rig, item, rig, turns, until, values

OUTCOMES = "torchlane_items_total"


class Expecting:
    """A request that is expected, and how often it was told that its wait ended early."""

    def __init__(self, r: Rig, within: float = FAR) -> None:
        self.ended = 0
        self._engine = r.engine
        deadline = r.clock.now() + within
        self.submission: Submission = r.engine.expect(MODEL, deadline, self._end)

    def supply(self, *numbers: float) -> None:
        self._engine.supply(self.submission, [item(number) for number in numbers])

    def _end(self) -> None:
        self.ended += 1


async def test_expected_request_is_answered_normally() -> None:
    async with rig(cache_bytes=1000) as r:
        await r.ask(1)
        expecting = Expecting(r)
        assert not expecting.submission.is_settled
        expecting.supply(1, 2, 2)
        answer = await expecting.submission.answer()
        assert values(answer) == [2, 4, 4]
        assert answer.cache == (1, 1, 1)
        assert expecting.ended == 0
        assert r.metric(OUTCOMES, outcome="ok") == 4


async def test_supplied_items_may_have_an_earlier_deadline() -> None:
    async with rig(max_batch_size=1) as r:
        r.backend.gate.clear()
        busy, expecting = r.start(1), Expecting(r)
        await until(lambda: bool(r.backend.batches))
        sooner = r.clock.now() + 5
        r.engine.supply(expecting.submission, [item(2)], sooner)
        r.clock.advance(4)
        await turns()
        assert not expecting.submission.is_settled
        r.clock.advance(2)
        await turns()
        with pytest.raises(DeadlineExceeded):
            expecting.submission.result()
        r.backend.gate.set()
        assert values(await busy) == [2]


async def test_deadline_ends_an_expected_request() -> None:
    async with rig() as r:
        expecting = Expecting(r, within=5)
        r.clock.advance(6)
        with pytest.raises(DeadlineExceeded):
            expecting.submission.result()
        assert expecting.ended == 1
        expecting.supply(1)
        await turns()
        assert r.backend.batches == []


async def test_caller_may_abandon_an_expected_request() -> None:
    async with rig() as r:
        expecting = Expecting(r)
        expecting.submission.abandon()
        with pytest.raises(Abandoned):
            expecting.submission.result()
        expecting.supply(1)
        assert expecting.ended == 1
        assert await r.engine.drain(1)


@pytest.mark.parametrize("error", [InvalidInput("no picture"), KeyError("a bug")])
async def test_decoding_error_is_the_answer(error: Exception) -> None:
    async with rig() as r:
        expecting = Expecting(r)
        expecting.submission.fail(error)
        with pytest.raises(type(error)):
            await expecting.submission.answer()


async def test_fully_cached_items_settle_immediately() -> None:
    async with rig(cache_bytes=1000) as r:
        await r.ask(1)
        expecting, told = Expecting(r), []
        expecting.submission.when_settled(
            lambda: told.append(values(expecting.submission.result()))
        )
        expecting.supply(1)
        assert told == [[2]]


async def test_items_that_do_not_fit_are_all_rejected() -> None:
    async with rig(queue_limit=2) as r:
        r.backend.gate.clear()
        running = r.start(1)
        await until(lambda: bool(r.backend.batches))
        waiting, expecting = r.start(2), Expecting(r)
        await turns()
        expecting.supply(3, 4)
        with pytest.raises(Overloaded):
            expecting.submission.result()
        assert r.metric(OUTCOMES, outcome="overloaded") == 0  # as for a request that was rejected
        r.backend.gate.set()
        assert [values(await each) for each in (running, waiting)] == [[2], [4]]
