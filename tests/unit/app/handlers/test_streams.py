"""Streams of handlers that yield: order, pace, time, and their end."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import orjson
import pytest

from app import errors
from app.handlers.contract import HandlerJob
from tests.unit.app.handlers.pools import Served, serving, settled
from torchlane.handlers.frames import WINDOW

# Yields as many items as asked for, with a pause before each; asked for nothing, it tells how many
# it has made, and how many streams have been closed.
COUNTS = """
made = closed = 0
async def predict(self, request):
    asked = request.json()
    if not asked:
        yield [self.made, self.closed]
        return
    try:
        for number in range(asked["items"]):
            await asyncio.sleep(asked.get("s", 0))
            self.made += 1
            yield number if not asked.get("bytes") else "x" * asked["bytes"]
        if asked.get("fails"):
            raise RuntimeError("no more")
    finally:
        self.closed += 1
"""
COUNTS_IN_THREAD = COUNTS.replace("async def", "def").replace("await asyncio", "time")


class Reader:
    """Reads a stream."""

    def __init__(self, served: Served, timeout_s: float = 20.0, **asked: Any) -> None:
        self.items: deque[Any] = deque()
        self.news = asyncio.Event()
        body = orjson.dumps(asked)
        self.job: HandlerJob = served.submit(body, timeout_s, on_item=self._take)

    def _take(self, item: bytes) -> None:
        self.items.append(orjson.loads(item))
        self.news.set()

    async def read(self) -> Any:
        """The next item."""
        async with asyncio.timeout(20):
            while not self.items:
                self.news.clear()
                await self.news.wait()
        self.job.taken()
        return self.items.popleft()


async def made_and_closed(served: Served) -> list[int]:
    [counts] = await served.ask(b"null")
    return list(counts)


@pytest.mark.parametrize("methods", [COUNTS, COUNTS_IN_THREAD], ids=["async", "thread"])
async def test_items_come_in_order_and_no_further_ahead_than_they_are_taken(
    tmp_path: Path, methods: str
) -> None:
    async with serving(tmp_path, methods) as served:
        reader = Reader(served, items=100)
        await served.until(lambda: len(reader.items) == WINDOW)
        await asyncio.sleep(0.1)
        assert len(reader.items) == WINDOW
        assert await made_and_closed(served) == [WINDOW + 1, 0]
        assert [await reader.read() for _ in range(100)] == [*range(100)]
        await settled(reader.job)
        assert await made_and_closed(served) == [100, 1]


async def test_large_items_come_one_at_a_time(tmp_path: Path) -> None:
    async with serving(tmp_path, COUNTS) as served:
        reader = Reader(served, items=3, bytes=1_000_000)
        await served.until(lambda: reader.items)
        await asyncio.sleep(0.1)
        assert len(reader.items) == 1
        for _ in range(3):
            assert len(await reader.read()) == 1_000_000
        await settled(reader.job)


@pytest.mark.parametrize("methods", [COUNTS, COUNTS_IN_THREAD], ids=["async", "thread"])
async def test_reader_that_leaves_closes_the_generator(tmp_path: Path, methods: str) -> None:
    async with serving(tmp_path, methods) as served:
        reader = Reader(served, items=1000, s=0.01)
        await reader.read()
        reader.job.abandon()
        async with asyncio.timeout(20):
            while (await made_and_closed(served))[1] == 0:
                await asyncio.sleep(0.01)
        assert served.metrics.causes == []  # the process goes on


async def test_each_item_has_the_time_of_the_request(tmp_path: Path) -> None:
    async with serving(tmp_path, COUNTS) as served:
        reader = Reader(served, 0.5, items=8, s=0.1)
        assert [await reader.read() for _ in range(8)] == [*range(8)]
        await settled(reader.job)
        late = Reader(served, 0.3, items=2, s=0.2)
        await late.read()
        slow = Reader(served, 0.3, items=2, s=1.0)
        with pytest.raises(errors.HandlerTimeout):
            await settled(slow.job)


async def test_a_slow_reader_is_not_the_handlers_fault(tmp_path: Path) -> None:
    async with serving(tmp_path, COUNTS) as served:
        reader = Reader(served, 0.3, items=40)
        for _ in range(3):
            await asyncio.sleep(0.2)
            await reader.read()
        for _ in range(37):
            await reader.read()
        await settled(reader.job)


async def test_failure_after_some_items(tmp_path: Path) -> None:
    async with serving(tmp_path, COUNTS) as served:
        reader = Reader(served, items=2, fails=True)
        assert [await reader.read(), await reader.read()] == [0, 1]
        with pytest.raises(errors.HandlerFailed) as caught:
            await settled(reader.job)
        assert caught.value.reason == "RuntimeError: no more"


async def test_one_answer_has_all_items(tmp_path: Path) -> None:
    async with serving(tmp_path, COUNTS) as served:
        assert await served.ask(b'{"items": 50}') == [*range(50)]
        with pytest.raises(errors.HandlerFailed):
            await served.ask(b'{"items": 2, "fails": true}')


async def test_item_that_json_lacks_fails_the_stream(tmp_path: Path) -> None:
    methods = """
    async def predict(self, request):
        yield 1
        yield object()
    """
    async with serving(tmp_path, methods) as served:
        reader = Reader(served)
        assert await reader.read() == 1
        with pytest.raises(errors.HandlerFailed) as caught:
            await settled(reader.job)
        assert "JSON has no form for an object of type object" in caught.value.reason


@pytest.mark.parametrize(
    ("number", "reason"), [(1, "nobody waits for"), (7, "the unknown request 7")]
)
async def test_items_that_it_may_not_send_end_the_process(
    tmp_path: Path, number: int, reason: str
) -> None:
    methods = f"""
    async def predict(self, request):
        for _ in range({WINDOW + 1}):
            self._served._send(10, {number}, {{}}, b"1")
        await asyncio.sleep(9)
    """
    async with serving(tmp_path, methods) as served:
        reader = Reader(served)
        with pytest.raises(errors.HandlerDied, match=reason):
            await settled(reader.job)
