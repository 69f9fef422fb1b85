"""Batches that do not fit into a device's memory: split now, and smaller ones from then on."""

from __future__ import annotations

from app.engine.batch_cost import GROW_AFTER_S
from app.errors import OutOfMemory
from app.types import Arrays
from tests.unit.app.engine.harness import Rig, rig, turns


class Memory:
    """A device that has room for `room` items."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __call__(self, inputs: Arrays) -> Arrays | None:
        if len(inputs["x"]) > self.room:
            raise OutOfMemory("it does not fit")
        return None


def sizes(r: Rig) -> list[int]:
    """Of the batches that the backend has run, since they were asked for last."""
    found = [len(batch) for batch in r.backend.batches]
    r.backend.batches.clear()
    return found


async def test_out_of_memory_makes_next_batches_smaller() -> None:
    async with rig(scripts=[Memory(room=3)], max_batch_size=8) as r:
        assert await r.ask(*range(8)) == [2 * n for n in range(8)]
        assert sizes(r) == [8, 4, 4, 1, 2, 2, 2, 2]  # the single one is the golden example
        assert await r.ask(*range(10, 18)) == [2 * n for n in range(10, 18)]
        assert max(sizes(r)) <= 3
        assert r.metric("torchlane_out_of_memory_total") == 1


async def test_item_that_does_not_fit_fails_alone() -> None:
    def script(inputs: Arrays) -> Arrays | None:
        if (inputs["x"] == 7).any():
            raise OutOfMemory("it does not fit")
        return None

    async with rig(scripts=[script], max_batch_size=4) as r:
        assert await r.ask(5, 6, 7, 8) == [10, 12, "backend_failed", 16]
        sizes(r)
        assert await r.ask(1, 2, 3, 4) == [2, 4, 6, 8]
        assert sizes(r) == [4]  # one that is too large for any batch makes no batch smaller


async def test_larger_batches_are_tried_again_later() -> None:
    memory = Memory(room=2)
    async with rig(scripts=[memory], max_batch_size=8) as r:
        await r.ask(*range(8))
        sizes(r)
        memory.room = 8  # a neighbour has left
        await r.ask(*range(10, 18))
        assert sizes(r) == [2, 2, 2, 2]
        for expected in ([4, 4], [8]):
            r.clock.advance(GROW_AFTER_S)
            r.engine.wake()  # it is looked at when something changes
            await turns()
            base = 100 * expected[0]
            await r.ask(*range(base, base + 8))
            assert sizes(r) == expected
