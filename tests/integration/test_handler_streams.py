"""Streams of handlers over HTTP: forms, failures, callers that leave or read slowly."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.handlers import asks, write_handler
from tests.integration.listening import Listening, listening
from tests.integration.wire import request

COUNTS = """
import asyncio
import torchlane

class Counts(torchlane.Handler):
    made = closed = 0

    async def predict(self, request):
        asked = request.json()
        if not asked:
            yield [self.made, self.closed]
            return
        try:
            for number in range(asked["items"]):
                await asyncio.sleep(asked.get("s", 0))
                self.made += 1
                yield number if not asked.get("bytes") else "x" * asked["bytes"]
            if asked.get("fails"):
                raise torchlane.InvalidInput("no more")
        finally:
            self.closed += 1
"""
PATH = "/models/counts/predict"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Listening]:
    example = asks({"items": 2}, [0, 1])
    write_handler(tmp_path, "counts", 1, COUNTS, [example], entry="counts:Counts", streams=True)
    async with listening(tmp_path, handlers="on") as server:
        yield server
        server.asgi.clear()


async def posted(server: Listening, accept: str = "*/*", **asked: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        return await client.post(PATH, json=asked, headers={"accept": accept})


@pytest.mark.parametrize(
    ("accept", "media_type", "text"),
    [
        ("*/*", "text/event-stream", "data: 0\n\ndata: 1\n\n"),
        ("text/event-stream", "text/event-stream", "data: 0\n\ndata: 1\n\n"),
        ("application/x-ndjson, */*;q=0.1", "application/x-ndjson", "0\n1\n"),
        ("application/json", "application/json", "[0,1]"),
    ],
)
async def test_form_is_by_accept(
    server: Listening, accept: str, media_type: str, text: str
) -> None:
    answer = await posted(server, accept, items=2)
    assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
    assert answer.text == text
    refused = await posted(server, "image/png", items=2)
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")


async def test_connection_goes_on_after_a_stream(server: Listening) -> None:
    wire = await server.connect()
    for _ in range(2):
        wire.send(request(PATH, b'{"items": 2}'))
        answer = await wire.reader.readuntil(b"\r\n0\r\n\r\n")
        assert answer.endswith(b"9\r\ndata: 0\n\n\r\n9\r\ndata: 1\n\n\r\n0\r\n\r\n")
        assert b"transfer-encoding: chunked" in answer
    old = await server.connect()
    old.send(request(PATH, b'{"items": 1}', version="1.0"))
    assert (await old.rest()).endswith(b"\r\n\r\ndata: 0\n\n")


async def test_stream_without_items_is_an_answer(server: Listening) -> None:
    answer = await posted(server, items=0)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    assert answer.text == ""


async def test_failure_before_the_first_item_is_an_error(server: Listening) -> None:
    answer = await posted(server, items=0, fails=True)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")


@pytest.mark.parametrize(
    ("accept", "text"),
    [
        ("*/*", 'data: 0\n\nevent: error\ndata: {"error":"no more","code":"invalid_input"}\n\n'),
        ("application/x-ndjson", '0\n{"error":"no more","code":"invalid_input"}\n'),
    ],
)
async def test_failure_after_an_item_is_told_and_cuts_the_connection(
    server: Listening, accept: str, text: str
) -> None:
    pieces = []
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client,
        client.stream(
            "POST", PATH, json={"items": 1, "fails": True}, headers={"accept": accept}
        ) as answer,
    ):

        async def read() -> None:
            async for piece in answer.aiter_text():
                pieces.append(piece)

        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            await read()
    assert "".join(pieces) == text
    metrics = await server.ask(request("/metrics", b"", method="GET"))
    line = next(
        line for line in metrics.body.decode().splitlines() if 'code="invalid_input"' in line
    )
    assert line.startswith("torchlane_requests_total{")
    assert line.endswith(" 1.0")


async def made_and_closed(server: Listening) -> list[int]:
    return list(json.loads((await posted(server, "application/json")).content)[0])


async def test_caller_that_leaves_closes_the_generator(server: Listening) -> None:
    wire = await server.connect()
    wire.send(request(PATH, b'{"items": 1000, "s": 0.01}'))
    await wire.reader.readuntil(b"data: 0")
    await wire.close()
    async with asyncio.timeout(20):
        while (await made_and_closed(server))[1] < 2:  # its example was the first
            await asyncio.sleep(0.01)


async def test_caller_that_does_not_read_stops_the_generator(server: Listening) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request(PATH, b'{"items": 100000, "bytes": 10000}'))
        before, made = -1, 0
        async with asyncio.timeout(20):
            while made != before:
                await asyncio.sleep(0.2)
                before, made = made, (await made_and_closed(server))[0]
        assert 0 < made < 10_000  # what the sockets hold
    async with asyncio.timeout(20):
        while (await made_and_closed(server))[1] < 2:
            await asyncio.sleep(0.01)


async def test_batches_and_calls_get_lists(server: Listening, tmp_path: Path) -> None:
    body = b'{"inputs": [{"items": 2}, {"items": 3}]}'
    answer = await server.ask(request("/models/counts/batch-predict", body))
    assert answer.json()["predictions"] == [[0, 1], [0, 1, 2]]
