"""The load generator against tiny servers in the same loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable

import pytest

from loadtests.bench.generator import LoadError, LoadPlan, load

PLAN = LoadPlan(connections=4, warm_up_s=0.05, seconds=0.3)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy"


@contextlib.asynccontextmanager
async def answering(answer: Callable[[bytes], bytes]) -> AsyncIterator[int]:
    """A server on a free port: what it answers to a body; nothing closes the connection."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                content = answer(await reader.readexactly(length))
                if not content:
                    break
                writer.write(content)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def counted() -> Callable[[], bytes]:
    """Requests whose bodies are 0000, 0001, ..."""
    numbers = itertools.count()
    head = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n"
    return lambda: b"%b%04d" % (head, next(numbers) % 10_000)


async def test_every_request_is_sent_once_and_every_answer_counted() -> None:
    bodies: list[bytes] = []

    def answer(body: bytes) -> bytes:
        bodies.append(body)
        return OK

    async with answering(answer) as port:
        run = await load(port, counted(), PLAN)
    assert run.answered == len(bodies) > PLAN.connections
    assert bodies == [b"%04d" % (number % 10_000) for number in range(len(bodies))]
    assert 0 < len(run.latencies_s) <= run.answered
    assert all(0 < latency < 5 for latency in run.latencies_s)
    assert run.requests_per_s == len(run.latencies_s) / PLAN.seconds
    assert run.not_200 == 0


async def test_answers_that_are_not_200_are_counted_and_the_first_is_kept() -> None:
    async with answering(lambda body: BUSY if body == b"0001" else OK) as port:
        run = await load(port, counted(), LoadPlan(2, 0.0, 0.3))
    assert run.not_200 >= 1
    assert run.first_not_200 is not None
    assert (run.first_not_200.status, run.first_not_200.body) == (503, b"busy")


async def test_a_connection_that_breaks_ends_the_run() -> None:
    async with answering(lambda body: b"" if body == b"0002" else OK) as port:
        with pytest.raises(LoadError, match="closed a connection"):
            await load(port, counted(), PLAN)


async def test_an_answer_that_cannot_be_read_ends_the_run() -> None:
    async with answering(lambda _: b"SMTP ready\r\n\r\n") as port:
        with pytest.raises(LoadError, match="cannot be read"):
            await load(port, counted(), PLAN)


async def test_nobody_listens() -> None:
    async with answering(lambda _: OK) as port:
        pass
    with pytest.raises(LoadError, match=f"cannot connect to port {port}"):
        await load(port, counted(), PLAN)
