"""A server that lies as it is told to: what the checker must notice is done here on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.chaos.truth import Item, Mark, answer

END = b"\r\n\r\n"


@dataclass(frozen=True)
class Said:
    """One answer as it will be written.

    Attributes:
        rows: of the predictions, one an item.
        id: of the request that it says it answers.
        copies: how often it is written.
        status: anything but 200 makes an error of it.
        code: of the error.
        details: of the error.
        cut: how many bytes at its end are never written.
    """

    rows: Sequence[object]
    id: str
    model: str = "steady"
    version: int = 1
    copies: int = 1
    status: int = 200
    code: str = ""
    details: Sequence[object] = field(default_factory=tuple)
    cut: int = 0
    many: bool = False

    def written(self) -> bytes:
        """As bytes."""
        places: list[object] = [
            {"code": row, "error": "no"} if isinstance(row, str) else {"outputs": {"y": row}}
            for row in self.rows
        ]
        content: dict[str, object] = {"model": self.model, "version": self.version}
        content |= (
            {"predictions": places} if self.many else {"prediction": places[0] if places else None}
        )
        if self.status != 200:
            content = {"error": "no", "code": self.code, "request_id": self.id}
            content["details"] = list(self.details)
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 {self.status} X\r\nx-request-id: {self.id}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}"
        whole = head.encode() + END + body
        return whole[: len(whole) - self.cut] * self.copies


# Gets what would be right; None says nothing at all.
Lie = Callable[[Said], Said | None]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def honest(said: Said) -> Said:
    """No lie."""
    return said


@contextlib.asynccontextmanager
async def lying(lie: Lie) -> AsyncIterator[int]:
    """A server on the loopback interface; gives its port. It understands what its tests ask."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = False
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not ended:
                said = lie(_right(*await _request(reader)))
                if said is None:
                    await asyncio.Event().wait()
                else:
                    writer.write(said.written())
                    ended = said.cut > 0

    async with serving(serve) as port:
        yield port


@contextlib.asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """A server on the loopback interface; gives its port. It closes what it has served."""
    visits: set[asyncio.Task[None]] = set()

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            visits.add(task)
        try:
            await serve(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(visit, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in visits:
            task.cancel()
        await asyncio.gather(*visits, return_exceptions=True)


async def _request(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    lines = (await reader.readuntil(END)).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return headers, await reader.readexactly(int(headers["content-length"]))


def _right(headers: dict[str, str], body: bytes) -> Said:
    """What an honest server says; a body that it cannot read is refused."""
    asked = json.loads(body)
    values = asked["inputs"] if "inputs" in asked else [asked["input"]]
    said = Said([], headers["x-request-id"], many="inputs" in asked)
    wrong = [index for index, each in enumerate(values) if not isinstance(each, list)]
    if wrong:
        details = [{"index": wrong[0]}] if "inputs" in asked else []
        return replace(said, status=422, code="invalid_input", details=details)
    items = [Item(number, Mark(mark)) for number, mark, _ in values]
    if all(item.code for item in items):
        return replace(said, status=500, code=str(items[0].code))
    return replace(said, rows=[item.code or answer("steady", 1, item) for item in items])
