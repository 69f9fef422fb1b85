"""A cache server that answers by a script, right or wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import hiredis

# The bytes of the answer to a command; None: it is never answered.
Script = Callable[[list[bytes]], bytes | None]


def right(command: list[bytes]) -> bytes:
    """What a server says that has nothing yet."""
    if command[0] == b"MGET":
        return b"*%d\r\n" % (len(command) - 1) + b"$-1\r\n" * (len(command) - 1)
    return b"+OK\r\n"


class ScriptedServer:
    """See the module.

    Attributes:
        script: may be changed at any time.
        commands: that have arrived.
        connections: that were accepted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.script: Script = right
        self.commands: list[list[bytes]] = []
        self.connections = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def count(self, name: bytes) -> int:
        return sum(command[0] == name for command in self.commands)

    @property
    def written(self) -> list[list[bytes]]:
        """The commands that set a value, without probes."""
        sets = [command for command in self.commands if command[0] == b"SET"]
        return [command for command in sets if not command[1].endswith(b"probe")]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        parser = hiredis.Reader(notEnoughData=b"")
        try:
            while data := await reader.read(1 << 16):
                parser.feed(data)
                while command := parser.gets():
                    self.commands.append(command)
                    answer = self.script(command)
                    if answer is not None:
                        writer.write(answer)
                        await writer.drain()
        except (ConnectionError, asyncio.CancelledError):  # the end of the test
            return
        finally:
            writer.close()
            self.tasks.discard(task)


@contextlib.asynccontextmanager
async def scripted_server(folder: Path) -> AsyncIterator[ScriptedServer]:
    """On a socket in the folder."""
    made = ScriptedServer(folder / "scripted.sock")
    server = await asyncio.start_unix_server(made.serve, made.path)
    try:
        yield made
    finally:
        server.close()
        for task in made.tasks:
            task.cancel()
        await asyncio.sleep(0.01)
