"""Requests that any ASGI application answers, over a real socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.testing import capture_logs

from app.api.transport.cycle import BODY_BYTES
from tests.artifacts import write_artifact
from tests.integration.listening import listening, until
from tests.integration.wire import READY, request

MIB = 1 << 20
LENGTH_4 = (b"content-length", b"4")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_artifact(tmp_path, "double")
    return tmp_path


def start(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def part(body: bytes, *, more_body: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more_body}


def sends(*messages: Message) -> ASGIApp:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    return app


async def read_all(receive: Receive) -> list[bytes]:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message["body"])
        more = message["more_body"]
    return parts


async def test_scope(models: Path) -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        scope["state"]["mine"] = len(scopes)
        scopes.append(scope)
        await sends(start(), part(b""))(scope, _, send)

    async with listening(models, app, root_path="/root") as server:
        wire = await server.connect()
        wire.send(request("/a%20b/%c3%a9?x=%20", b"", X_Odd="\xe9") + READY)
        await until(lambda: len(scopes) == 2)
        first, second = scopes
        address = wire.writer.get_extra_info("sockname")
    for name in ("cut", "request_id", "transport"):
        del first[f"torchlane.{name}"]
    assert first == {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", server.port),
        "client": address,
        "scheme": "http",
        "method": "POST",
        "root_path": "/root",
        "path": "/root/a b/\xe9",
        "raw_path": b"/root/a%20b/%c3%a9",
        "query_string": b"x=%20",
        "headers": [
            (b"host", b"loopback"),
            (b"content-type", b"application/json"),
            (b"x-odd", b"\xe9"),
            (b"content-length", b"0"),
        ],
        "state": {"mine": 0},
    }
    assert (second["path"], second["method"]) == ("/root/health/ready", "GET")
    assert second["state"] == {"mine": 1}


@pytest.mark.parametrize(
    ("asked", "messages", "headers", "body"),
    [
        ({}, [start(), part(b"ab", more_body=True), part(b"cd")], ["transfer-encoding: chunked"],
         b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"),
        ({}, [start(), part(b"")], ["transfer-encoding: chunked"], b"0\r\n\r\n"),
        ({}, [start(LENGTH_4), part(b"ab", more_body=True), part(b"cd")], ["content-length: 4"],
         b"abcd"),
        ({"version": "1.0"}, [start(), part(b"ab", more_body=True), part(b"cd")],
         ["connection: close"], b"abcd"),
        ({"method": "HEAD"}, [start(LENGTH_4), part(b"abcd")], ["content-length: 4"], b""),
        ({}, [start(status=204), part(b"")], [], b""),
        ({}, [start(LENGTH_4, status=304), part(b"")], ["content-length: 4"], b""),
        ({"connection": "close"}, [start(LENGTH_4), part(b"abcd")],
         ["content-length: 4", "connection: close"], b"abcd"),
        ({}, [start(LENGTH_4, (b"Connection", b"Close")), part(b"abcd")],
         ["content-length: 4", "connection: Close"], b"abcd"),
    ],
)  # fmt: skip
async def test_framing(
    models: Path, asked: dict[str, Any], messages: list[Message], headers: list[str], body: bytes
) -> None:
    async with listening(models, sends(*messages)) as server:
        wire = await server.connect()
        wire.send(request("/any", b"", **asked))
        head = (await wire.reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        assert head[1:] == headers  # this server has no Date
        assert await wire.reader.readexactly(len(body)) == body
        if "connection: close" in [each.lower() for each in headers]:
            assert await wire.rest() == b""
        else:
            wire.send(request("/any", b"", connection="close"))
            assert (await wire.rest()).startswith(b"\r\n".join((head[0].encode(), b"")))


@pytest.mark.parametrize(
    ("messages", "event"),
    [
        ([], "answer_not_complete"),
        ([part(b"abcd")], "application_failed"),
        ([start((b"x-odd", b"a\r\nb: c"))], "application_failed"),
        ([start((b"transfer-encoding", b"chunked"), (b"x odd", b"a"))], "application_failed"),
        ([start(LENGTH_4)], "answer_not_complete"),
        ([start(LENGTH_4), start()], "application_failed"),
        ([start(LENGTH_4), part(b"ab")], "application_failed"),
        ([start(LENGTH_4), part(b"abcde")], "application_failed"),
        ([start(), part(b"ab", more_body=True)], "answer_not_complete"),
    ],
)
async def test_wrong_answers_end_the_connection(
    models: Path, messages: list[Message], event: str
) -> None:
    async with listening(models, sends(*messages)) as server:
        wire = await server.connect()
        with capture_logs() as lines:
            wire.send(request("/any", b""))
            got = await wire.rest()
    assert [each["event"] for each in lines] == [event]
    if messages[:1] == [start(LENGTH_4)]:
        assert got.endswith(b"content-length: 4\r\n\r\n")
    elif messages[:1] == [start()]:
        assert got.endswith(b"2\r\nab\r\n")
    else:
        assert got.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert got.endswith(b"connection: close\r\n\r\nInternal Server Error")


async def test_messages_after_an_answer(models: Path) -> None:
    heard: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await sends(start(LENGTH_4), part(b"abcd"))(scope, receive, send)
        heard.append((await receive())["type"])
        with pytest.raises(RuntimeError, match="more than its answer"):
            await send(part(b""))
        heard.append("done")

    async with listening(models, app) as server:
        assert (await server.ask(request("/any"))).body == b"abcd"
        assert heard == ["http.disconnect", "done"]


async def test_disconnect(models: Path) -> None:
    heard: list[str] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        assert await read_all(receive) == [b"abc"]
        heard.append("body")
        heard.append((await receive())["type"])
        await send(start())  # to nobody
        await send(part(b"abc"))
        heard.append("done")

    async with listening(models, app) as server:
        wire = await server.connect()
        wire.send(request("/any", b"abc"))
        await until(lambda: heard == ["body"])
        await wire.close()
        await until(lambda: heard == ["body", "http.disconnect", "done"])


@pytest.mark.parametrize("reads", [True, False])
async def test_interim_answer_if_the_body_is_read(models: Path, reads: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_all(receive) if reads else []
        await sends(start(LENGTH_4), part(b"".join(body).ljust(4)))(scope, receive, send)

    async with listening(models, app) as server:
        wire = await server.connect()
        data = request("/any", b"abc", expect="100-continue")
        wire.send(data[:-3])
        line = await wire.reader.readline()
        assert line == (b"HTTP/1.1 100 Continue\r\n" if reads else b"HTTP/1.1 200 OK\r\n")
        await wire.reader.readuntil(b"\r\n" if reads else b"\r\n\r\n")
        wire.send(data[-3:])
        assert (await wire.answer()).body == b"abc " if reads else True


async def test_bodies_that_are_not_read_stay_with_the_client(models: Path) -> None:
    reads = asyncio.Event()
    parts: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reads.wait()
        parts.extend(await read_all(receive))
        await sends(start(LENGTH_4), part(b"abcd"))(scope, receive, send)

    async with listening(models, app) as server:
        wire = await server.connect()
        wire.send(request("/any", bytes(8 * MIB)) + READY)
        await asyncio.sleep(0.1)
        reads.set()
        assert (await wire.answer()).body == (await wire.answer()).body == b"abcd"
    assert len(parts[0]) < BODY_BYTES + MIB
    assert sum(map(len, parts)) == 8 * MIB
