"""What waits keeps no more alive than the bytes that are counted for it."""

from __future__ import annotations

import asyncio
import weakref

import numpy as np

from app.engine.queue import Ticket, TicketQueue
from app.types import Array, Item
from tests.unit.app.engine.harness import MODEL, item, rig, until, values


def rows(count: int) -> Array:
    """As a codec reads a body of many items."""
    return np.frombuffer(bytes(4 * count), np.float32).reshape(count, 1)


def row(whole: Array, index: int) -> Item:
    return Item({"x": whole[index, ...]})


async def test_queued_item_does_not_keep_its_body() -> None:
    async with rig() as r:
        r.backend.gate.clear()
        running = r.start(1)
        await until(lambda: len(r.backend.batches) == 1)
        whole = rows(1000)
        body = weakref.ref(whole if whole.base is None else whole.base)
        waiting = r.engine.submit(MODEL, [row(whole, 3)], r.clock.now() + 100)
        del whole
        assert body() is None
        assert r.metric("torchlane_queue_bytes") == 4
        r.backend.gate.set()
        assert values(await waiting.answer()) == [0]
        await running


async def test_only_views_of_larger_arrays_are_copied() -> None:
    async with rig() as r:
        r.backend.gate.clear()
        running = r.start(1)
        await until(lambda: len(r.backend.batches) == 1)
        whole, own = rows(1000), np.ones(2, np.float32)
        body, kept = weakref.ref(whole.base), weakref.ref(own)
        given = Item({"x": whole[0, ...], "y": own})
        waiting = r.engine.submit(MODEL, [given], r.clock.now() + 100)
        del whole, own, given
        assert body() is None
        assert kept() is not None
        r.backend.gate.set()
        await asyncio.gather(running, waiting.settled())


def test_withdrawn_ticket_frees_its_item() -> None:
    queue = TicketQueue(10, 1000)
    tickets = [Ticket(b"%d" % number, item(number), 0.0, 9.0, 9.0) for number in range(3)]
    for ticket in tickets:
        queue.submit(ticket)
    arrays = [weakref.ref(ticket.item.arrays["x"]) for ticket in tickets]
    withdrawn = tickets.pop(1)
    queue.withdraw(withdrawn)
    queue.withdraw(withdrawn)  # the second time it changes nothing
    del withdrawn
    assert [array() is None for array in arrays] == [False, True, False]
    assert (queue.waiting, queue.waiting_bytes) == (2, 8)
    assert len(queue.take(queue.shapes()[0].groups, 10, 0.0)[0]) == 2
