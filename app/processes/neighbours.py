"""The processes of one server ask each other to write down what they have counted.

What a process has counted, and a gauge that is asked when it is scraped, can be had only in that
process. So whoever is scraped sends every other one a datagram, and each writes down and says so.
Nothing happens between two scrapes, and nothing during a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ASK = b"?"
DONE = b"!"
PATIENCE_S = 0.5  # with a neighbour that is busy; it then counts with what it wrote down last
BYTES = 64  # of one datagram at most
BURST = 64


@dataclass(slots=True)
class _Round:
    """One time of asking: who has not answered, and what to set when all have."""

    missing: set[str]
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Neighbours:
    """One process among those that share a folder; made on its event loop.

    Args:
        folder: where each has a socket.
        name: of this one, unlike all others.
        refresh: writes this process's gauges down.
    """

    def __init__(self, folder: Path, name: str, refresh: Callable[[], None]) -> None:
        self._folder = folder
        self._path = folder / f"{name}.socket"
        self._refresh = refresh
        self._numbers = itertools.count()
        self._rounds: dict[bytes, _Round] = {}
        self._loop = asyncio.get_running_loop()
        self._path.unlink(missing_ok=True)  # of one that was killed
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(self._path))
        self._loop.add_reader(self._socket, self._heard)

    def close(self) -> None:
        """Answer nobody any more."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    async def refreshed(self) -> None:
        """Return when everybody who lives has written down what it has, or after PATIENCE_S."""
        number = b"%d" % next(self._numbers)
        others = [str(path) for path in self._folder.glob("*.socket") if path != self._path]
        this = self._rounds[number] = _Round({path for path in others if self._ask(path, number)})
        try:
            if this.missing:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(this.complete.wait(), PATIENCE_S)
        finally:
            del self._rounds[number]

    def _ask(self, path: str, number: bytes) -> bool:
        try:
            self._socket.sendto(ASK + number, path)
        except OSError:  # it has died, or has not read for long
            return False
        return True

    def _heard(self) -> None:
        for _ in range(BURST):
            try:
                data, address = self._socket.recvfrom(BYTES)
            except BlockingIOError:
                return
            kind, number = data[:1], data[1:]
            if kind == ASK:
                self._refresh()
                with contextlib.suppress(OSError):  # it asked and died
                    self._socket.sendto(DONE + number, address)
            elif number in self._rounds:  # else too late
                this = self._rounds[number]
                this.missing.discard(address)
                if not this.missing:
                    this.complete.set()
