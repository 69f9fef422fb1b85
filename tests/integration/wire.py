"""A client that speaks raw HTTP/1.1, byte by byte if need be."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

JSON = "application/json"
LIMIT_S = 60.0  # for anything that a test waits for
READY_LIMIT_S = 180.0  # for all models of a server, on a busy machine
OPEN = "torchlane_requests_in_flight"
COUNTED = "torchlane_requests_total"
CUT = "torchlane_connections_cut_total"
UNLIKE = frozenset({"date", "server-timing", "x-request-id"})  # differ from answer to answer


@dataclass(frozen=True)
class WireAnswer:
    """A response; header names in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def __getitem__(self, name: str) -> str:
        """The value of a header that is there once."""
        (value,) = (value for each, value in self.headers if each == name)
        return value

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.headers]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """`ok`, or the code of the error."""
        return "ok" if self.status == 200 else str(self.json()["code"])

    def alike(self) -> tuple[int, list[tuple[str, str]], object]:
        """The parts that two answers to the same request must share."""
        body: object = self.body
        if self.status != 200 and dict(self.headers).get("content-type") == JSON:
            body = {**self.json(), "request_id": ""}
        kept: dict[str, str] = {}
        for name, value in sorted(self.headers):
            if name not in UNLIKE and (name != "content-length" or self.status == 200):
                # Lines of one name are one list: RFC 9110, 5.3.
                kept[name] = f"{kept[name]}, {value}" if name in kept else value
        return self.status, list(kept.items()), body


def request(
    path: str = "/predict",
    body: bytes = b'{"input": [1, 2]}',
    *,
    method: str = "POST",
    version: str = "1.1",
    chunk_bytes: int | None = None,
    **headers: str,
) -> bytes:
    """A request's bytes; underscores in header names stand for dashes.

    With `chunk_bytes` the body comes in chunks of this size instead of with a Content-Length.
    """
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {"host": "loopback", "content-type": JSON, **given}
    if chunk_bytes is None:
        given.setdefault("content-length", str(len(body)))
    else:
        given["transfer-encoding"] = "chunked"
        body = chunked(body, chunk_bytes)
    lines = [f"{name}: {value}\r\n" for name, value in given.items()]
    return f"{method} {path} HTTP/{version}\r\n{''.join(lines)}\r\n".encode("latin-1") + body


def ask_for(number: float, **headers: Any) -> bytes:
    """A request to the model `double`."""
    return request(body=b'{"input": [%r, 2]}' % number, **headers)


def chunked(body: bytes, chunk_bytes: int) -> bytes:
    """A body in the chunked transfer coding."""
    pieces = [body[at : at + chunk_bytes] for at in range(0, len(body), chunk_bytes)]
    return b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in pieces) + b"0\r\n\r\n"


READY = request("/health/ready", b"", method="GET")


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, body: bool = True) -> WireAnswer:
        """The next answer, after any 100 Continue; `body=False` for one to HEAD."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                status = int((await self._line()).split()[1])
                headers = []
                while line := await self._line():
                    name, _, value = line.partition(":")
                    headers.append((name.lower(), value.strip()))
                if status != 100:
                    break
            length = int(dict(headers).get("content-length", "0")) if body else 0
            if dict(headers).get("transfer-encoding") == "chunked":
                raise ValueError("the server is not expected to send chunks")
            return WireAnswer(status, tuple(headers), await self.reader.readexactly(length))

    async def ask(self, data: bytes) -> WireAnswer:
        self.send(data)
        return await self.answer()

    async def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def _line(self) -> str:
        line = await self.reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the connection was closed before the answer was complete")
        return line.rstrip(b"\r\n").decode("latin-1")


def total_of(metrics: str, name: str, labels: Mapping[str, str]) -> float:
    """The sum over all series of a metric that carry these labels."""
    pairs = [f'{key}="{value}"' for key, value in labels.items()]
    lines = [line.rpartition(" ") for line in metrics.splitlines()]
    return sum(
        float(value)
        for series, _, value in lines
        if series.partition("{")[0] == name and all(pair in series for pair in pairs)
    )


async def answered(wire: Wire, number: float) -> None:
    """The next answer is the right one to `ask_for(number)`."""
    answer = await wire.answer()
    got = answer.json().get("prediction")
    assert (answer.status, got) == (200, {"outputs": {"y": [2 * number, 4]}}), answer
