"""The script that judges a stop under load: what it calls lost is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "compose/drain_load.py"
CONNECTIONS = 4
GOOD = b'{"prediction":{"scores":[1.0]}}'
STOPPING = b'{"code":"shutting_down"}'
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def whole(writer: asyncio.StreamWriter, status: bytes, body: bytes) -> None:
    writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
    await writer.drain()


async def refuse(writer: asyncio.StreamWriter) -> None:
    await whole(writer, b"503 Service Unavailable", STOPPING)


async def half_an_answer(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD[:9])
    await writer.drain()
    writer.close()


async def counts(last: Answer, good: int = 40) -> dict[str, int]:
    """What is counted where a server answers well so many times, and then always like `last`."""
    answered = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.rpartition(b": ")[2]))
                answered += 1
                if answered <= good:
                    await whole(writer, b"200 OK", GOOD)
                else:
                    await last(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(SCRIPT), f"http://127.0.0.1:{port}", str(CONNECTIONS)),
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await asyncio.wait_for(process.communicate(), 60)
        await asyncio.sleep(0.1)  # for the last connections to be taken down
    lines = printed.decode().splitlines()
    assert lines[0] == "loading"
    found: dict[str, int] = json.loads(lines[-1])["counts"]
    return found


async def test_a_rejected_request_is_not_lost() -> None:
    assert await counts(refuse) == {"answered": 40, "refused": CONNECTIONS}


async def test_a_request_without_a_whole_answer_is_lost() -> None:
    assert await counts(half_an_answer) == {"answered": 40, "lost": CONNECTIONS}
