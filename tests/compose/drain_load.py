"""Load on a server that is about to stop, and what became of it; runs in a container of the stack.

python -c THIS URL CONNECTIONS  writes `loading` once every connection has had an answer, in the end
a line of JSON. Half of the connections are kept alive, half are opened anew for every request; each
sends its next request when it has its answer. Only the standard library. What is counted:

answered   200, with a prediction
refused    503 shutting_down, or the connection was refused: the client can go elsewhere
unread     a connection that was reset before its first answer: the kernel had taken it, the server
           that stopped listening had not
lost       everything else: a connection that was closed without a whole answer
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random
import sys
from urllib.parse import urlsplit

LIMIT_S = 90.0
ITEM = 32 * 32


class Load:
    """The connections of one run and what they count."""

    def __init__(self, host: str, port: int, connections: int) -> None:
        self.host, self.port, self.connections = host, port, connections
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self._fresh = set(range(connections))  # without an answer yet

    async def run(self) -> None:
        """Load until every connection has been told to go elsewhere."""
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            for number in range(self.connections):
                group.create_task(self._client(number, keep=number % 2 == 0))

    async def _client(self, number: int, *, keep: bool) -> None:
        outcome = "answered"
        while outcome == "answered":
            try:
                reader, writer = await asyncio.open_connection(self.host, self.port)
            except OSError:
                self.counts["refused"] += 1
                return
            try:
                outcome = await self._converse(number, reader, writer, keep=keep)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _converse(
        self,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        keep: bool,
    ) -> str:
        """Requests on one connection; how the last of them ended."""
        first = True
        while True:
            outcome = await self._request(reader, writer)
            if outcome == "reset":
                outcome = "unread" if first else "lost"
            self.counts[outcome] += 1
            if outcome == "answered" and number in self._fresh:
                self._fresh.remove(number)
                if not self._fresh:
                    print("loading", flush=True)  # noqa: T201
            first = False
            if outcome != "answered" or not keep:
                return outcome

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """One prediction of an input that nobody else sends."""
        body = json.dumps({"input": [random.random() for _ in range(ITEM)]}).encode()
        head = f"POST /predict HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            head_bytes = await reader.readuntil(b"\r\n\r\n")
            fields = head_bytes.decode().lower().split("\r\n")
            length = next(f.partition(":")[2] for f in fields if f.startswith("content-length:"))
            answer = json.loads(await reader.readexactly(int(length)))
        except OSError:
            return "reset"
        except asyncio.IncompleteReadError:
            return "lost"
        status = int(fields[0].split()[1])
        if status == 200 and "scores" in answer["prediction"]:
            return "answered"
        if status == 503 and answer["code"] == "shutting_down":
            return "refused"
        self.wrong.append(f"{status} {answer}")
        return "lost"


def main() -> None:
    """Load, and write what was counted."""
    parts = urlsplit(sys.argv[1])
    load = Load(parts.hostname or "", parts.port or 80, int(sys.argv[2]))
    asyncio.run(load.run())
    print(json.dumps({"counts": load.counts, "wrong": load.wrong[:5]}))  # noqa: T201


if __name__ == "__main__":
    main()
