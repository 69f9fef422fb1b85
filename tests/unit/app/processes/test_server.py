"""The custom shutdown waits for connections."""

from __future__ import annotations

import asyncio
import socket
import time

from app.processes.server import _until_empty


async def test_what_arrived_before_the_deadline_is_read_although_the_loop_stood_still() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        waiting = [theirs]
        asyncio.get_running_loop().add_reader(ours, waiting.clear)
        theirs.send(b"request")
        await _until_empty(waiting, time.monotonic() - 1)
        asyncio.get_running_loop().remove_reader(ours)
    assert not waiting


async def test_the_wait_ends_although_something_stays() -> None:
    began = time.monotonic()
    await _until_empty(["a client that stays"], began + 0.02)
    assert time.monotonic() >= began + 0.02
