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

from app.serving.lifecycle import Lifecycle
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
            sizes = asked.get("sizes") or [asked.get("bytes", 0)] * asked["items"]
            for number in range(asked["items"]):
                await asyncio.sleep(asked.get("s", 0))
                self.made += 1
                size = sizes[number]
                yield number if not size else "x" * size
            if asked.get("fails"):
                wrong = torchlane.InvalidInput("no more", [{"at": 1}])
                raise wrong if asked["fails"] == "input" else RuntimeError("no more")
        finally:
            self.closed += 1
"""
PATH = "/models/counts/predict"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Listening]:
    example = asks({"items": 2}, [0, 1])
    write_handler(tmp_path, "counts", 1, COUNTS, [example], entry="counts:Counts", streams=True)
    async with listening(
        tmp_path, handlers="on", show_model_errors=True, max_answer_bytes="300KB", reload_s=0
    ) as server:
        yield server
        server.asgi.clear()


async def posted(server: Listening, accept: str = "*/*", **asked: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
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
    answer = await posted(server, items=0, fails="input")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")


async def cut(server: Listening, accept: str = "*/*", **asked: Any) -> str:
    """The body of an answer that has no end."""
    pieces = []
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client,
        client.stream(
            "POST", PATH, json=asked, headers={"accept": accept, "x-request-id": "id-7"}
        ) as answer,
    ):

        async def read() -> None:
            async for piece in answer.aiter_text():
                pieces.append(piece)

        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            await read()
    return "".join(pieces)


@pytest.mark.parametrize(
    ("accept", "before"),
    [("*/*", "data: 0\n\nevent: error\ndata: "), ("application/x-ndjson", "0\n")],
)
async def test_failure_after_an_item_is_told_and_cuts_the_connection(
    server: Listening, accept: str, before: str
) -> None:
    got = await cut(server, accept, items=1, fails="input")
    assert got.startswith(before)
    assert json.loads(got.removeprefix(before)) == {
        "error": "no more",
        "code": "invalid_input",
        "details": [{"at": 1}],
        "request_id": "id-7",
    }
    assert await server.metric("torchlane_requests_total", code="invalid_input") == 1


async def test_an_exception_after_an_item_is_shown_if_a_setting_allows_it(
    server: Listening,
) -> None:
    got = await cut(server, "application/x-ndjson", items=1, fails="code")
    told = json.loads(got.splitlines()[-1])
    assert told["code"] == "handler_failed"
    assert told["details"] == [{"handler_error": "RuntimeError: no more"}]


async def test_an_item_is_as_large_as_an_answer_may_be(server: Listening) -> None:
    many = await posted(server, "application/x-ndjson", items=9, bytes=299_000)
    assert [len(each) for each in many.text.splitlines()] == [299_002] * 9
    assert server.service.answers.held == 0
    large = await posted(server, "application/x-ndjson", items=1, bytes=300_000)
    assert (large.status_code, large.json()["code"]) == (413, "payload_too_large")
    got = await cut(server, items=2, sizes=[1, 300_000])
    assert "payload_too_large" in got
    async with asyncio.timeout(20):
        while (await made_and_closed(server))[1] < 4:  # with its example
            await asyncio.sleep(0.01)


async def test_items_that_are_not_read_count_as_answers(server: Listening) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request(PATH, b'{"items": 1000, "bytes": 290000}'))
        async with asyncio.timeout(20):
            while server.service.answers.held < 200_000:
                await asyncio.sleep(0.01)
    async with asyncio.timeout(20):
        while server.service.answers.held:
            await asyncio.sleep(0.01)


async def test_a_stream_is_not_compressed(server: Listening) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        for codings, status in (("gzip", 200), ("gzip, identity;q=0", 406)):
            answer = await client.post(
                PATH, json={"items": 2}, headers={"accept-encoding": codings}
            )
            assert answer.status_code == status
            assert "content-encoding" not in answer.headers
        answer = await client.post(
            PATH,
            json={"items": 2},
            headers={"accept": "application/json", "accept-encoding": "gzip, identity;q=0"},
        )
        assert answer.headers["content-encoding"] == "gzip"


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
    assert await server.metric("torchlane_requests_total", code="abandoned") == 1
    assert server.service.bodies.held == 0


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


async def test_batches_get_lists(server: Listening) -> None:
    body = b'{"inputs": [{"items": 2}, {"items": 3}]}'
    answer = await server.ask(request("/models/counts/batch-predict", body))
    assert answer.json()["predictions"] == [[0, 1], [0, 1, 2]]


RETURNS = """
import torchlane

class Counts(torchlane.Handler):
    async def predict(self, request):
        return [*range(request.json()["items"])]
"""


async def test_a_version_that_answers_otherwise_replaces_one_while_a_body_arrives(
    server: Listening, tmp_path: Path
) -> None:
    body = b'{"items": 2}'
    data = request(PATH, body)
    wire = await server.connect()
    wire.send(data[: -len(body)])
    example = asks({"items": 2}, [0, 1])
    write_handler(tmp_path, "counts", 2, RETURNS, [example], entry="counts:Counts")
    await asyncio.sleep(0.1)
    lifecycle: Lifecycle = server.app.state.lifecycle
    await lifecycle.reload()
    wire.send(body)
    answer = await wire.answer()
    assert (answer.status, answer.json()) == (200, [0, 1])
    other = await server.connect()
    other.send(data[: -len(body)])
    write_handler(tmp_path, "counts", 3, COUNTS, [example], entry="counts:Counts", streams=True)
    await asyncio.sleep(0.1)
    await lifecycle.reload()
    other.send(body)
    later = await other.answer()
    assert (later.status, later.json()) == (200, [0, 1])


async def test_a_version_that_is_replaced_ends_its_streams(tmp_path: Path) -> None:
    example = asks({"items": 2}, [0, 1])
    settings = tmp_path / "models.toml"
    settings.write_text("[models.counts]\ntimeout_ms = 500\n")
    models = tmp_path / "models"
    write_handler(models, "counts", 1, COUNTS, [example], entry="counts:Counts", streams=True)
    async with listening(models, handlers="on", models_file=settings, reload_s=0) as server:
        stream = asyncio.create_task(posted(server, "application/x-ndjson", items=20, s=0.1))
        await asyncio.sleep(0.3)
        write_handler(models, "counts", 2, RETURNS, [example], entry="counts:Counts")
        lifecycle: Lifecycle = server.app.state.lifecycle
        await lifecycle.reload()
        assert not stream.done()
        assert (await posted(server, items=3)).json() == [0, 1, 2]
        assert (await stream).text.split() == [str(number) for number in range(20)]
