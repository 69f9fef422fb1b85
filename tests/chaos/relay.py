"""The handlers of a chaos run: they ask models, and misbehave as their items are marked.

They run in processes of their own, which know nothing but what is here: `relayed.py` appends lines
that set the constants.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import torchlane

VERSION = 0
CONSTANT = 0  # in its answers
JOURNAL = "/dev/null"
EXAMPLE = "example-"  # begins the ids of requests that the server sends itself
MARKS: dict[str, int] = {}  # by name

GROWTH_BYTES = 300 << 20
PADDING, ITEM_PADDING = "x" * 500_000, "x" * 100_000
LINES = 3000
MOST_FORKS = 2  # of a process
PAUSE_S = 0.2
LINGER_S = 1.0
FOREVER_S = 600.0


class Acting(torchlane.Handler):
    """What both have."""

    def setup(self) -> None:
        """See `Handler`."""
        self._names = {mark: name for name, mark in MARKS.items()}
        self._journal = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._children = 0

    def _begins(self, request: torchlane.Request, item: list[int]) -> str:
        """What an item makes the handler do."""
        self._tell(request, item[0], "begins")
        return self._names.get(item[1], "")

    def _row(self, request: torchlane.Request, item: list[int], *predictions: Any) -> list[float]:
        number, mark, salt = item
        row: list[float] = [number, 3 * salt + 5 * mark + CONSTANT, VERSION]
        for each in predictions:
            theirs = each["outputs"]["y"]
            # Examples have the same answers whatever versions the models have.
            row += [*theirs[:2], 0] if request.request_id.startswith(EXAMPLE) else theirs
        return row

    async def _act(self, what: str, request: torchlane.Request, number: int) -> None:
        act = getattr(self, f"_{what.lower()}", None)
        if act is not None:
            self._tell(request, number, what)
            await act(request)

    def _tell(self, request: torchlane.Request, number: int, what: str) -> None:
        line = {"handler": type(self).__name__.lower(), "pid": os.getpid(), "at": time.monotonic()}
        line |= {"id": request.request_id, "number": number, "what": what}
        os.write(self._journal, f"{json.dumps(line)}\n".encode())

    # One for each mark.

    async def _raises(self, request: torchlane.Request) -> None:
        raise RuntimeError("as its item says" * 1000)

    async def _exits(self, request: torchlane.Request) -> None:
        os._exit(7)

    async def _loops(self, request: torchlane.Request) -> None:
        while True:
            pass

    async def _blocks(self, request: torchlane.Request) -> None:
        time.sleep(FOREVER_S)  # noqa: ASYNC251  # that is the fault

    async def _grows(self, request: torchlane.Request) -> None:
        hoard = b"x" * GROWTH_BYTES
        await asyncio.sleep(FOREVER_S)
        del hoard

    async def _prints(self, request: torchlane.Request) -> None:
        for _ in range(LINES):
            sys.stdout.write(f"{'y' * 100}\n")

    async def _pauses(self, request: torchlane.Request) -> None:
        time.sleep(PAUSE_S)  # noqa: ASYNC251  # that is the fault

    async def _forks(self, request: torchlane.Request) -> None:
        if self._children < MOST_FORKS:
            self._children += 1
            if os.fork() == 0:
                self._tell(request, 0, "FORKED")
                time.sleep(FOREVER_S)  # noqa: ASYNC251
                os._exit(0)

    async def _late(self, request: torchlane.Request) -> None:
        await asyncio.sleep(FOREVER_S)

    async def _lingers(self, request: torchlane.Request) -> None:
        try:
            await asyncio.sleep(FOREVER_S)
        except asyncio.CancelledError:
            await asyncio.sleep(LINGER_S)

    async def _stays(self, request: torchlane.Request) -> None:
        try:
            await asyncio.sleep(FOREVER_S)
        except asyncio.CancelledError:
            await asyncio.sleep(FOREVER_S)


class Relay(Acting):
    """[number, mark, salt] -> its own row, and those of both models."""

    models = ("steady", "narrow")

    async def predict(self, request: torchlane.Request) -> Any:
        """See the class."""
        item = request.json()
        number, what = item[0], self._begins(request, item)
        if number % 2 or what == "STAYS":  # a call that is cancelled would end it with the others
            steady = await self.call("steady", item)
            await self._act(what, request, number)
            (narrow,) = await self.call_many("narrow", [item])
        else:  # if one of them fails, the others go on
            steady, (narrow,), _ = await asyncio.gather(
                self.call("steady", item),
                self.call_many("narrow", [item]),
                self._act(what, request, number),
            )
        row = self._row(request, item, steady, narrow)
        if what == "BYTES":
            octets = struct.pack("<9f", *row)
            return torchlane.Response(octets, "application/octet-stream")
        return {"row": row, "padding": PADDING} if what == "LARGE" else {"row": row}


class Feed(Acting):
    """[[number, mark, salt], ...] -> a row for each as it comes, with the model's for some."""

    models = ("steady",)

    async def predict(self, request: torchlane.Request) -> AsyncIterator[Any]:
        """See the class."""
        items = request.json()
        self._tell(request, items[0][0], "opens")
        try:
            for item in items:
                what = self._begins(request, item)
                await self._act(what, request, item[0])
                row = self._row(request, item, *([] if what else [await self.call("steady", item)]))
                yield {"row": row, "padding": ITEM_PADDING} if what == "LARGE" else {"row": row}
        finally:
            self._tell(request, items[0][0], "closes")
