"""The line of each request: the same on both ways, once however it ends, and without secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from structlog.testing import capture_logs

from app.access.entries import make_key
from app.api.oip.grpc import streams
from tests.artifacts import write_artifact
from tests.integration.grpc_calls import HEALTH, INFERENCE, REFLECTION, refused, row, serving
from tests.integration.listening import Doubles, Listening, listening, until
from tests.integration.wire import request

SECRET, KEY = make_key("mobile", ["predict"])
ASGI: dict[str, Any] = {"expect": "100-continue"}  # such a request takes the ASGI way
VARY = ("request_id", "ms", "queue_ms", "event", "log_level")
PART: dict[str, Any] = {"content_length": "100", "x_torchlane_timeout_ms": "100"}
DOUBLE = {"model": "double", "version": 3}
OK = {**DOUBLE, "status": 200, "code": "ok", "bytes_in": 17}
ONE = {**OK, "items": 1}
BAD = {"bytes_in": 0}
MANY = b'{"inputs": [[1, 2], [3, 4], [5, 6], [5, 6]]}'
# A request, and what its line has in addition to the method, the route and the key's name.
ANSWERED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "computed": ({}, {**ONE, "cache": "miss", "batch": 1}),
    "cached": ({}, {**ONE, "cache": "hit"}),
    "remembered": ({}, {**ONE, "cache": "memo"}),
    "many": (
        {"path": "/batch-predict", "body": MANY},
        {**OK, "items": 4, "cache": "hit=1, miss=2, joined=1", "batch": 2, "bytes_in": len(MANY)},
    ),
    "named": (
        {"path": "/models/double/versions/3/predict"},
        {**ONE, "cache": "memo", "route": "/models/{name}/versions/{version}/predict"},
    ),
    "no key": (
        {"path": "/models/double/predict", "authorization": "Bearer wrong"},
        {**BAD, "model": "double", "status": 401, "code": "unauthorized"},
    ),
    "no JSON": ({"body": b"{"}, {**DOUBLE, "status": 422, "code": "invalid_input", "bytes_in": 1}),
    "no model": (
        {"path": "/models/none/predict"},
        {**BAD, "model": "none", "status": 404, "code": "model_not_found"},
    ),
    "no version": (
        {"path": "/models/double/versions/9/predict"},
        {**BAD, "model": "double", "version": 9, "status": 404, "code": "model_not_found"},
    ),
    "too long": ({"body": bytes(2000)}, {**BAD, "status": 413, "code": "payload_too_large"}),
    "host": (
        {"path": "/models/double/predict", "host": "evil"},
        {**BAD, "model": "double", "status": 400, "code": "untrusted_host"},
    ),
    "traced": (
        {"traceparent": f"00-{'a' * 32}-{'b' * 16}-00"},
        {**ONE, "cache": "memo", "trace_id": "a" * 32},
    ),
}
# What a client sends, whether it leaves then, and the end of the line.
UNFINISHED: dict[str, tuple[bytes, bool, dict[str, Any]]] = {
    "malformed": (
        request(transfer_encoding="chunked", content_length="").replace(
            b"content-length: \r\n", b""
        )
        + b"zz\r\n",
        False,
        {**BAD, "status": 400, "code": "bad_request"},
    ),
    "late": (
        request(body=b"{", **PART),
        False,
        {"status": 504, "code": "deadline_exceeded", "bytes_in": 1},
    ),
    "left": (
        request(body=b"{", content_length="100"),
        True,
        {"status": 499, "code": "abandoned", "bytes_in": 1, "bytes_out": 0},
    ),
}


def lines(logs: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(each) for each in logs if each["event"] == "request"]


def alike(line: dict[str, Any]) -> dict[str, Any]:
    """The part of a line that does not differ from request to request."""
    assert line["request_id"]
    assert line["ms"] >= 0
    assert ("queue_ms" in line) == ("batch" in line)
    return {name: value for name, value in line.items() if name not in VARY}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_artifact(folder, "double", 3)
    return folder


async def settled(logs: Sequence[Any], number: int) -> list[dict[str, Any]]:
    """Wait for this number of lines; return them if no more follow."""
    await until(lambda: len(lines(logs)) >= number)
    await asyncio.sleep(0.02)
    written = lines(logs)
    assert len(written) == number
    return written


def has_begun(server: Listening) -> bool:
    return server.service.metrics.requests_open == 1


async def test_both_ways_write_the_same_lines(models: Path) -> None:
    ways = []
    for headers in ({}, ASGI):
        async with listening(
            models,
            access_log="all",
            api_keys=KEY,
            max_body_bytes=1000,
            bodies_limit_bytes=1000,
            trusted_hosts="loopback",
        ) as server:
            with capture_logs() as logs:
                sizes = []
                for number, (given, _) in enumerate(ANSWERED.values(), 1):
                    bearer = {"authorization": f"Bearer {SECRET}"}
                    answer = await server.ask(request(**(bearer | headers | given)))
                    sizes.append(len(answer.body))
                    written = await settled(logs, number)
            assert len(server.asgi) == (len(ANSWERED) if headers else 0)
        assert SECRET not in str(logs)
        assert [line["bytes_out"] for line in written] == sizes
        ways.append([alike(line) for line in written])
    assert ways[0] == ways[1]
    for line, (given, expected) in zip(ways[0], ANSWERED.values(), strict=True):
        route = given.get("path", "/predict").replace("/double", "/{name}")
        common = {"method": "POST", "route": route.replace("/none", "/{name}")}
        common["route"] = (
            common["route"].replace("/3/", "/{version}/").replace("/9/", "/{version}/")
        )
        if line["code"] != "unauthorized":
            common["key"] = "mobile"
        assert line == common | {"bytes_out": line["bytes_out"]} | expected


@pytest.mark.parametrize("end", UNFINISHED)
async def test_requests_that_do_not_arrive_have_one_line(models: Path, end: str) -> None:
    sent, leaves, expected = UNFINISHED[end]
    ways = []
    for way in (sent, sent.replace(b"\r\n", b"\r\nexpect: 100-continue\r\n", 1)):
        async with listening(models) as server:
            with capture_logs() as logs:
                wire = await server.connect()
                wire.send(way)
                request_id = None
                if leaves:
                    await until(partial(has_begun, server))
                    await wire.close()
                else:
                    request_id = (await wire.answer())["x-request-id"]
                (line,) = await settled(logs, 1)
            assert bool(server.asgi) == (way is not sent)
        assert request_id in (None, line["request_id"])
        ways.append(alike(line))
    assert ways[0] == ways[1]
    assert ways[0].items() >= ({"method": "POST", "route": "/predict"} | expected).items()


async def test_a_client_that_leaves_while_its_batch_runs(models: Path) -> None:
    doubles = Doubles()
    async with listening(models, make_backend=doubles) as server:
        doubles.hold()
        with capture_logs() as logs:
            ways: tuple[dict[str, Any], ...] = ({}, ASGI)
            for way, headers in enumerate(ways, 1):
                wire = await server.connect()
                wire.send(request(**headers))
                await until(lambda: bool(doubles.one.batches))
                await wire.close()
                line = (await settled(logs, way))[-1]
                ended = {"status": 499, "code": "abandoned", "items": 1, "bytes_out": 0}
                assert alike(line).items() >= (DOUBLE | ended).items()
        doubles.go_on()


async def test_a_stop_that_ends_requests(models: Path) -> None:
    async with listening(models) as server:
        with capture_logs() as logs:
            wire = await server.connect()
            wire.send(request(body=b"{", content_length="100"))
            await until(lambda: server.service.metrics.requests_open == 1)
            server.connections[0].give_up()
            assert (await wire.answer()).status == 503
            (line,) = await settled(logs, 1)
    assert (line["status"], line["code"]) == (503, "shutting_down")


async def test_what_is_no_request_has_a_line(models: Path) -> None:
    async with listening(models, head_timeout_s=1.0) as server:
        for sent, status, code in (
            (b"rubbish\r\n\r\n", 400, "bad_request"),
            (b"GET /" + b"a" * 70_000, 431, "head_too_large"),
            (b"GET / HTTP/1.1\r\n", 408, "head_late"),
        ):
            with capture_logs() as logs:
                wire = await server.connect()
                wire.send(sent)
                answer = await wire.answer()
                (line,) = await settled(logs, 1)
            assert line["request_id"] == answer["x-request-id"]
            ended = {"method": "HTTP", "status": status, "code": code, "bytes_in": 0}
            assert alike(line) == ended | {"bytes_out": len(answer.body)}


async def test_other_routes(models: Path) -> None:
    asked = {
        "/models/double?a=hidden": ("/models/{name}", "double"),
        "/health/ready": ("/health/ready", None),
        "/admin/profile": ("/admin/profile", None),
        "/page/main.js?b=hidden": ("/page", None),
        "/hidden": (None, None),
    }
    async with listening(models, access_log="all", page="on") as server:
        with capture_logs() as logs:
            for number, path in enumerate(asked, 1):
                await server.ask(request(path, b"", method="GET", cookie="hidden"))
                written = await settled(logs, number)  # the application may end after its answer
            head = request("/models", b"", method="HEAD", x_request_id="mine")
            wire = await server.connect()
            wire.send(head)
            await wire.answer(body=False)
            last = (await settled(logs, len(asked) + 1))[-1]
    assert [(line.get("route"), line.get("model")) for line in written] == [*asked.values()]
    assert "hidden" not in str(logs)
    assert (last["method"], last["request_id"], last["bytes_out"]) == ("HEAD", "mine", 0)


class TestGrpc:
    """Calls over gRPC; `status` is the status that HTTP has for the same."""

    async def test_calls(self, models: Path) -> None:
        async with serving(models, access_log="all", api_keys=KEY) as server:
            bearer = (("authorization", f"Bearer {SECRET}"), ("x-request-id", "mine"))
            with capture_logs() as logs:
                await server.infer(row(), metadata=bearer)
                await settled(logs, 1)
                missing = server.infer(row(model="none"), metadata=bearer)
                await refused(grpc.StatusCode.NOT_FOUND, missing)
                await settled(logs, 2)
                await refused(grpc.StatusCode.UNAUTHENTICATED, server.infer(row()))
                await settled(logs, 3)
                await server.ask("ServerReady")
                await settled(logs, 4)
                unknown = server.call("any/thing\n", b"")
                await refused(grpc.StatusCode.UNIMPLEMENTED, unknown)
                computed, none, no_key, probe, no_call = await settled(logs, 5)
        infer = f"/{INFERENCE}/ModelInfer"
        size = len(row().SerializeToString())
        assert alike(computed) == {
            "route": infer,
            **DOUBLE,
            "status": 200,
            "code": "ok",
            "grpc_status": "OK",
            "batch": 1,
            "items": 1,
            "cache": "miss",
            "bytes_in": size,
            "bytes_out": computed["bytes_out"],
            "key": "mobile",
        }
        assert computed["request_id"] == "mine"
        assert computed["bytes_out"] > 8
        assert (none["model"], none["status"], none["grpc_status"]) == ("none", 404, "NOT_FOUND")
        assert (no_key["grpc_status"], no_key["code"]) == ("UNAUTHENTICATED", "unauthorized")
        assert "key" not in no_key
        assert (probe["route"], probe["grpc_status"]) == (f"/{INFERENCE}/ServerReady", "OK")
        unknown_line = {"status": 404, "code": "not_found", "grpc_status": "UNIMPLEMENTED"}
        assert alike(no_call) == {**unknown_line, "bytes_in": 0, "bytes_out": 0}

    async def test_streams(self, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streams, "MAX_STREAMS_OF_CONNECTION", 1)
        async with serving(models, access_log="all") as server:
            with capture_logs() as logs:
                watch = server.channel.unary_stream(f"/{HEALTH}/Watch")
                kept = watch(b"")
                ready = health_pb2.HealthCheckResponse.FromString(await kept.read())
                await refused(grpc.StatusCode.RESOURCE_EXHAUSTED, watch(b"").read())
                await settled(logs, 1)
                kept.cancel()
                await settled(logs, 2)
                reflect = server.channel.stream_stream(f"/{REFLECTION}/ServerReflectionInfo")()
                await reflect.done_writing()
                assert await reflect.read() is grpc.aio.EOF
                many, left, done = await settled(logs, 3)
        assert isinstance(ready, Message)
        route = f"/{HEALTH}/Watch"
        assert (many["route"], many["status"], many["code"]) == (route, 503, "overloaded")
        assert many["grpc_status"] == "RESOURCE_EXHAUSTED"
        assert (left["route"], left["status"], left["grpc_status"]) == (route, 499, "CANCELLED")
        assert (done["route"], done["status"], done["grpc_status"]) == (
            f"/{REFLECTION}/ServerReflectionInfo",
            200,
            "OK",
        )
