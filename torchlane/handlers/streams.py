"""Sends what a handler yields, no further ahead than its reader takes it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any

from torchlane.handlers.api import Request
from torchlane.handlers.frames import FROM_HANDLER_BYTES, fits

END = object()


class Flow:
    """The items of one stream on their way to the server.

    Args:
        send: sends an item.
        request: that it answers; each item has its time.
    """

    def __init__(self, send: Callable[[bytes], None], request: Request) -> None:
        self._send = send
        self._request = request
        self._ahead: deque[int] = deque()  # bytes of each item that was not taken
        self._taken = asyncio.Event()

    def taken(self) -> None:
        """The server has passed on the oldest item."""
        if self._ahead:
            self._ahead.popleft()
            self._taken.set()
            self._request._renew()

    async def put(self, item: bytes) -> None:
        """Send an item, once there is room for it.

        Raises:
            ValueError: it is too large.
        """
        if len(item) > FROM_HANDLER_BYTES:
            raise ValueError(f"an item has {len(item)} bytes, the limit is {FROM_HANDLER_BYTES}")
        while not fits(self._ahead, len(item)):
            self._taken.clear()
            await self._taken.wait()
        self._ahead.append(len(item))
        self._send(item)
        self._request._renew()


async def in_thread(
    values: Generator[Any, Any, Any], threads: Executor
) -> AsyncGenerator[Any, None]:
    """The values of a generator, each of which is made in a thread."""
    loop, context = asyncio.get_running_loop(), copy_context()
    step: asyncio.Future[Any] | None = None
    try:
        while True:
            step = loop.run_in_executor(threads, context.run, _next, values)
            value = await asyncio.shield(step)
            if value is END:
                return
            yield value
    finally:
        if step is not None and not step.done():  # a generator that runs cannot be closed
            await asyncio.wait([step])
        await loop.run_in_executor(threads, context.run, values.close)


def _next(values: Generator[Any, Any, Any]) -> Any:
    return next(values, END)
