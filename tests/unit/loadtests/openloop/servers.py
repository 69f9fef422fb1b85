"""Tiny servers in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from loadtests.openloop.address import ServerAddress

Answer = Callable[[bytes], Awaitable[bytes]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy"


@contextlib.asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[ServerAddress]:
    """A server on a free port: what it answers to a body; nothing closes the connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with (
            contextlib.closing(writer),
            contextlib.suppress(asyncio.IncompleteReadError, ConnectionError),
            contextlib.suppress(asyncio.CancelledError),  # or the streams log an error
        ):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                content = await answer(await reader.readexactly(length))
                if not content:
                    break
                writer.write(content)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield ServerAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # closed transports let go of their sockets in the next rounds


def requests(count: int) -> list[bytes]:
    """Requests whose bodies are 0000, 0001, ..."""
    head = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n"
    return [b"%b%04d" % (head, number) for number in range(count)]
