"""Streams of handlers that yield: order, pace, time, and their end."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import orjson
import pytest

from app import errors
from app.handlers import pool
from app.handlers.contract import HandlerJob
from app.handlers.job import Job
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
        seconds = asked.get("seconds") or [asked.get("s", 0)] * asked["items"]
        for number in range(len(seconds)):
            await asyncio.sleep(seconds[number])
            self.made += 1
            yield number if not asked.get("bytes") else "x" * asked["bytes"]
        if asked.get("fails"):
            raise RuntimeError("no more")
    finally:
        self.closed += 1
"""
COUNTS_IN_THREAD = COUNTS.replace("async def", "def").replace("await asyncio", "time")
COUNTS_UNCANCELLED = COUNTS.replace(
    "            await asyncio.sleep(seconds[number])\n",
    """\
            try:
                await asyncio.sleep(seconds[number])
            except asyncio.CancelledError:
                pass
""",
)


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


@pytest.mark.parametrize(
    "methods",
    [COUNTS, COUNTS_IN_THREAD, COUNTS_UNCANCELLED],
    ids=["async", "thread", "ignores its cancellation"],
)
async def test_reader_that_leaves_closes_the_generator(tmp_path: Path, methods: str) -> None:
    async with serving(tmp_path, methods) as served:
        reader = Reader(served, items=1000, s=0.01)
        await reader.read()
        reader.job.abandon()
        async with asyncio.timeout(20):
            while (await made_and_closed(served))[1] == 0:
                await asyncio.sleep(0.01)
        assert served.metrics.causes == []  # the process goes on


async def test_only_slow_readers_give_way_and_only_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SLOW_S", 0.5)
    async with serving(tmp_path, COUNTS, concurrency=2) as served:
        steady, slow = (Reader(served, items=100_000) for _ in range(2))

        async def read() -> None:
            while True:  # its generator is always ahead of it
                await steady.read()
                await asyncio.sleep(0.01)

        reading = asyncio.create_task(read())
        await asyncio.sleep(1)
        assert not slow.job.is_settled  # nobody else needs its place
        slower = await given_way(served, slow)
        assert await given_way(served, slower)  # which waits for the place until then
        assert not steady.job.is_settled
        reading.cancel()


async def given_way(served: Served, slow: Reader) -> Reader:
    """A request takes the place of a stream with a slow reader, and is followed by such a one."""
    assert (await made_and_closed(served))[1] > 0
    with pytest.raises(errors.Overloaded, match=r"gave way to other .* waited [0-9.]+ s"):
        await settled(slow.job)
    return Reader(served, items=100_000)


async def test_each_item_has_the_time_of_the_request(tmp_path: Path) -> None:
    async with serving(tmp_path, COUNTS) as served:
        reader = Reader(served, 0.5, items=8, s=0.1)
        assert [await reader.read() for _ in range(8)] == [*range(8)]
        await settled(reader.job)
        slow = Reader(served, 0.3, items=2, s=1.0)
        with pytest.raises(errors.HandlerTimeout, match=r"did not answer in 0\.[3-9]"):
            await settled(slow.job)
        slower = Reader(served, 0.5, seconds=[0.1, 2.0])
        await slower.read()
        with pytest.raises(errors.HandlerTimeout, match=r"gave no further item in 0\.[5-9]"):
            await settled(slower.job)


async def test_the_code_sees_the_time_of_each_item(tmp_path: Path) -> None:
    methods = """
    async def predict(self, request):
        for _ in range(3):
            yield request.left_s
            await asyncio.sleep(0.4)
    """
    async with serving(tmp_path, methods, seconds=1.0) as served:
        reader = Reader(served)
        left_s = [await reader.read() for _ in range(3)]
        assert min(left_s) > 0.4, left_s


async def test_a_slow_reader_is_not_the_handlers_fault(tmp_path: Path) -> None:
    async with serving(tmp_path, COUNTS) as served:
        reader = Reader(served, 0.3, items=40)
        await asyncio.sleep(1.0)
        assert [await reader.read() for _ in range(40)] == [*range(40)]
        await settled(reader.job)


async def test_long_streams_do_not_make_requests_too_late(tmp_path: Path) -> None:
    async with serving(tmp_path, COUNTS, concurrency=2) as served:
        first = Reader(served, items=8, s=0.1)
        await settled(first.job)
        running = [Reader(served, items=8, s=0.1) for _ in range(2)]
        await asyncio.sleep(0.6)
        waiting = Reader(served, 1.0, items=1)  # less than a stream takes, and half of another one
        assert await waiting.read() == 0
        for reader in running:
            await settled(reader.job)
        with pytest.raises(errors.Overloaded):
            [Reader(served, 1.0, items=8, s=0.1) for _ in range(9)]


async def test_a_stream_holds_no_body(tmp_path: Path) -> None:
    async with serving(tmp_path, COUNTS) as served:
        reader = Reader(served, items=2, s=0.1)
        await reader.read()
        assert isinstance(reader.job, Job)
        assert reader.job.request.body == b""


async def test_code_that_never_waits_leaves_time_to_others(tmp_path: Path) -> None:
    methods = """
    has_ended = False
    async def predict(self, request):
        if request.json() == "end":
            self.has_ended = True
        while not self.has_ended:
            yield 1
        yield 2
    """
    async with serving(tmp_path, methods) as served:
        waiting = served.submit(b'"begin"')
        assert await served.ask(b'"end"') == [2]
        assert orjson.loads((await settled(waiting)).body)[-1] == 2


@pytest.mark.parametrize("streams", [True, False])
async def test_code_that_answers_otherwise_than_at_export_does_not_start(
    tmp_path: Path, streams: bool
) -> None:
    methods = """
    async def predict(self, request):
        %s 1
    """
    told = "returns the answer" if streams else "yields the answer"
    with pytest.raises(errors.HandlerFailed, match=told):
        async with serving(tmp_path, methods % ("return" if streams else "yield"), streams=streams):
            pass


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


async def test_a_list_is_bounded_before_it_takes_the_memory(tmp_path: Path) -> None:
    async with serving(tmp_path, COUNTS) as served:
        with pytest.raises(errors.HandlerFailed) as caught:
            await served.ask(b'{"items": 1000, "bytes": 1000000}')
        assert caught.value.reason == "ValueError: all items have more than 67108864 bytes"
        assert (await made_and_closed(served))[0] < 100


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
    ("frame", "reason"),
    [
        ('10, 1, {}, b"1"', "nobody waits for"),
        ('10, 7, {}, b"1"', "the unknown request 7"),
        ('6, 1, {"status": 200, "media_type": ""}, b"1"', "not the end of a stream"),
        ('6, 1, {"status": 404, "media_type": ""}, b""', "not the end of a stream"),
    ],
)
async def test_frames_that_it_may_not_send_end_the_process(
    tmp_path: Path, frame: str, reason: str
) -> None:
    methods = f"""
    async def predict(self, request):
        for _ in range({WINDOW + 1}):
            self._served._send({frame})
        await asyncio.sleep(9)
        yield
    """
    async with serving(tmp_path, methods) as served:
        reader = Reader(served)
        with pytest.raises(errors.HandlerDied, match=reason):
            await settled(reader.job)
