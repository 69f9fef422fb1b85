"""The handler of a chaos run: asks two models, and misbehaves as its items are marked.

It runs in processes of its own, of which it knows nothing but what is here: `relayed.py` appends
lines that set the constants.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from typing import Any

import torchlane

VERSION = 0
CONSTANT = 0  # in its answers
JOURNAL = "/dev/null"
EXAMPLE = "example-"  # begins the ids of requests that the server sends itself
MARKS: dict[str, int] = {}  # by name

GROWTH_BYTES = 300 << 20
PADDING = "x" * 500_000
LINES = 3000
MOST_FORKS = 2  # of a process
PAUSE_S = 0.2
LINGER_S = 1.0
FOREVER_S = 600.0


class Relay(torchlane.Handler):
    """[number, mark, salt] -> its own row, and those of both models."""

    models = ("steady", "narrow")

    def setup(self) -> None:
        """See `Handler`."""
        self._names = {mark: name for name, mark in MARKS.items()}
        self._journal = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._children = 0

    async def predict(self, request: torchlane.Request) -> Any:
        """See the class."""
        number, mark, salt = item = request.json()
        what = self._names.get(mark, "")
        self._tell(request, number, "begins")
        if number % 2:
            steady = await self.call("steady", item)
            await self._act(what, request, number)
            (narrow,) = await self.call_many("narrow", [item])
        else:  # if one of them fails, the others go on
            steady, (narrow,), _ = await asyncio.gather(
                self.call("steady", item),
                self.call_many("narrow", [item]),
                self._act(what, request, number),
            )
        row = [number, 3 * salt + 5 * mark + CONSTANT, VERSION]
        for each in (steady, narrow):
            theirs = each["outputs"]["y"]
            # Examples have the same answers whatever versions the models have.
            row += [*theirs[:2], 0] if request.request_id.startswith(EXAMPLE) else theirs
        if what == "BYTES":
            octets = struct.pack("<9f", *row)
            return torchlane.Response(octets, "application/octet-stream")
        return {"row": row, "padding": PADDING} if what == "LARGE" else {"row": row}

    async def _act(self, what: str, request: torchlane.Request, number: int) -> None:
        act = getattr(self, f"_{what.lower()}", None)
        if act is not None:
            self._tell(request, number, what)
            await act(request)

    def _tell(self, request: torchlane.Request, number: int, what: str, **more: object) -> None:
        line = {"pid": os.getpid(), "at": time.monotonic(), "id": request.request_id}
        text = json.dumps({**line, "number": number, "what": what, **more})
        os.write(self._journal, f"{text}\n".encode())

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
