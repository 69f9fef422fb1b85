"""The unforeseen: internal bugs, odd splits of a stream, garbage, leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.api.transport.exchange import Exchange
from app.errors import InvalidInput
from app.metrics import Metrics
from tests.artifacts import write_artifact
from tests.integration.listening import listening
from tests.integration.wire import COUNTED, JSON, OPEN, READY, answered, ask_for, request


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_artifact(tmp_path, "double")
    return tmp_path


class Broken:
    """A parser that raises an error at requests for `/health/live`."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, piece: bytes | memoryview) -> None:
        if b"/health/live" in bytes(piece):
            raise ZeroDivisionError
        self._parser.feed_data(piece)


class TestInternalErrors:
    """Unforeseen errors are answered, logged once, and affect no other request."""

    async def test_a_parser_that_raises_in_a_later_turn(self, models: Path) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            await wire.ask(READY)
            (connection,) = server.connections
            connection.parser.llhttp = Broken(connection.parser.llhttp)
            other = await server.connect()
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            wire.send(READY + READY.replace(b"ready", b"live") + READY)
            assert (await wire.answer()).status == 200
            with contextlib.suppress(ConnectionError):
                assert await wire.rest() == b""
            other.send(ask_for(3) + ask_for(4))
            await answered(other, 3)
            await answered(other, 4)

    @pytest.mark.parametrize("where", ["decode_numbers", "encode"])
    @pytest.mark.parametrize("way", ["short", "asgi"])
    async def test_a_codec_that_raises(self, models: Path, where: str, way: str) -> None:
        def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError("/a/secret/path")

        async with listening(models, cache_bytes=0) as server:
            codec = server.service.loaded.resolve(None, None).codec
            expect = {"expect": "100-continue"} if way == "asgi" else {}
            wire = await server.connect()
            right = getattr(codec, where)
            with capture_logs() as logs:
                setattr(codec, where, broken)
                answer = await wire.ask(ask_for(3, x_request_id="mine", **expect))
                setattr(codec, where, right)
            assert answer.status == 500
            assert answer.json() == {
                "error": "internal error; the server's log has this request's id",
                "code": "internal",
                "request_id": "mine",
                "details": [],
            }
            assert answer["x-request-id"] == "mine"
            assert answer["content-type"] == JSON
            told = [each for each in logs if each["event"] == "unhandled_error"]
            assert [each["request_id"] for each in told] == ["mine"]
            wire.send(ask_for(4))
            await answered(wire, 4)
            assert await server.metric(COUNTED, status="500", code="internal") == 1
            assert await server.metric(OPEN) == 0

    @pytest.mark.parametrize("path", ["/predict", "/models/nope/predict"])
    async def test_failing_metrics_lose_no_answer(
        self, models: Path, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        def broken(self: object, *_: object) -> None:
            raise ZeroDivisionError

        wanted = 200 if path == "/predict" else 404
        async with listening(models) as server:
            wire, mate = await server.connect(), await server.connect()
            assert (await wire.ask(request(path))).status == wanted  # the cache has it now
            with monkeypatch.context() as patch, capture_logs():
                patch.setattr(Metrics, "request", broken)
                assert (await wire.ask(request(path))).status == wanted
                mate.send(ask_for(7))
                await answered(mate, 7)
            # No second answer to the request that was answered.
            wire.send(ask_for(8))
            await answered(wire, 8)
            mate.send(ask_for(9))
            await answered(mate, 9)
            assert await server.metric(OPEN) == 0

    async def test_an_error_that_cannot_be_encoded(self, models: Path) -> None:
        def reject(*_: object, **__: object) -> None:
            details: Any = [{"index": object()}]
            raise InvalidInput("no", details)

        async with listening(models) as server:
            codec: Any = server.service.loaded.resolve(None, None).codec
            wire = await server.connect()
            right = codec.decode_numbers
            with capture_logs() as logs:
                codec.decode_numbers = reject
                answer = await wire.ask(ask_for(3))
                codec.decode_numbers = right
            assert (answer.status, answer.code) == (500, "internal")
            assert [each["event"] for each in logs].count("unhandled_error") == 1
            wire.send(ask_for(4))
            await answered(wire, 4)


def exchanges() -> int:
    return sum(isinstance(each, Exchange) for each in gc.get_objects())


async def test_answered_requests_are_freed_without_gc(models: Path) -> None:
    async with listening(models, cache_bytes=0) as server:
        wire = await server.connect()
        gc.collect()
        gc.disable()
        try:
            before = exchanges()
            for number in range(300):
                wire.send(ask_for(number / 8))
                await answered(wire, number / 8)
            after = exchanges()
        finally:
            gc.enable()
    assert after - before < 5
