"""What sinks of `Tracing` hear of requests and batches, on every way that a request may take."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from app.errors import ModelError
from app.telemetry.tracing import BatchRecord, RequestTrace, Token
from app.types import Arrays
from tests.artifacts import write_artifact
from tests.integration.grpc_calls import row, serving
from tests.integration.listening import Doubles, Listening, listening, until
from tests.integration.wire import ask_for, request

ASGI = {"expect": "100-continue"}  # such a request takes the ASGI way


class Heard:
    """A sink that keeps what it hears."""

    def __init__(self, trace_id: str = "") -> None:
        self.fields: list[Mapping[bytes, bytes]] = []
        self.requests: list[RequestTrace] = []
        self.batches: list[tuple[BatchRecord, list[RequestTrace]]] = []
        self.errors: list[BaseException | None] = []
        self.batch_errors: list[str] = []
        self.token = Token(self, trace_id, "1" * 16 if trace_id else "")

    def wants(self, trace: RequestTrace, fields: Mapping[bytes, bytes]) -> Token | None:
        self.fields.append(fields)
        return None if b"x-leave" in fields else self.token

    def batch_ended(self, record: BatchRecord) -> None:
        self.batches.append((record, list(record.traces)))
        self.batch_errors += map(str, record.errors)

    def request_ended(self, trace: RequestTrace, token: Token) -> None:
        assert token is self.token is trace.token(self)
        self.requests.append(trace)
        self.errors.append(trace.error)


def fail_on_13(inputs: Arrays) -> Arrays | None:
    if (inputs["x"] == 13).any():
        raise ModelError("thirteen")
    return None


@pytest.fixture
def doubles() -> Doubles:
    return Doubles(fail_on_13)


@pytest.fixture
async def server(tmp_path: Path, doubles: Doubles) -> AsyncIterator[Listening]:
    write_artifact(tmp_path, "double", 3)
    async with listening(tmp_path, make_backend=doubles) as opened:
        yield opened


@pytest.fixture
def heard(server: Listening) -> Heard:
    sink = Heard()
    server.service.tracing.add(sink)
    return sink


@pytest.mark.parametrize("headers", [{}, ASGI], ids=["fast path", "asgi"])
async def test_a_request_and_its_batch(
    server: Listening, heard: Heard, headers: dict[str, str]
) -> None:
    before = time.perf_counter()
    answer = await server.ask(ask_for(1, **headers))
    after = time.perf_counter()
    assert answer.status == 200
    assert bool(server.asgi) == bool(headers)
    await until(lambda: bool(heard.requests))
    (trace,), ((record, traces),) = heard.requests, heard.batches
    assert (trace.method, trace.route, trace.path) == ("POST", "/predict", "/predict")
    assert (trace.status, trace.outcome, trace.items) == (200, "ok", 1)
    assert (str(trace.model), trace.cache and trace.cache.miss) == ("double/3", 1)
    assert (trace.batches, traces) == ([record], [trace])
    assert (str(record.model), record.items, record.forwards) == ("double/3", 1, 1)
    moments = [
        *(before, trace.began, trace.received, trace.decoded, record.handed_over),
        *(record.began, record.ended, trace.answered, trace.encoded, trace.ended, after),
    ]
    assert moments == sorted(moments)
    assert 0 < record.compute_s <= record.ended - record.began


async def test_joined_and_cached_requests(
    server: Listening, heard: Heard, doubles: Doubles
) -> None:
    doubles.hold()
    first = await server.connect()
    first.send(ask_for(1))
    await until(lambda: bool(doubles.one.batches))
    joining = await server.connect()
    joining.send(ask_for(1))
    await until(lambda: server.service.metrics.requests_open == 2)
    doubles.go_on()
    for wire in (first, joining):
        assert (await wire.answer()).status == 200
    assert (await server.ask(ask_for(1))).status == 200
    ((record, traces),) = heard.batches
    one, two, cached = sorted(heard.requests, key=lambda each: each.began)
    assert traces == [one, two]
    assert one.batches == two.batches == [record]
    assert two.cache is not None
    assert two.cache.joined == 1
    assert cached.batches == []
    assert cached.decoded > 0


async def test_a_request_abandoned_while_its_batch_runs(
    server: Listening, heard: Heard, doubles: Doubles
) -> None:
    doubles.hold()
    wire = await server.connect()
    wire.send(ask_for(1))
    await until(lambda: bool(doubles.one.batches))
    await wire.close()
    await until(lambda: bool(heard.requests))
    (trace,) = heard.requests
    assert (trace.status, trace.outcome) == (499, "abandoned")
    assert trace.batches[0].ended == 0
    doubles.go_on()
    await until(lambda: bool(heard.batches))
    assert heard.batches == [(trace.batches[0], [trace])]


async def test_errors(server: Listening, heard: Heard) -> None:
    assert (await server.ask(ask_for(13))).status == 500
    assert (await server.ask(request(body=b"{"))).status == 422
    assert (await server.ask(request("/models/none/predict"))).status == 404
    failed, malformed, unknown = heard.requests
    (record,) = failed.batches
    assert (failed.outcome, record.fault) == ("backend_failed", "")
    assert heard.batch_errors == ["thirteen"]
    assert not record.errors  # like those of requests
    assert (malformed.outcome, malformed.batches, malformed.decoded) == ("invalid_input", [], 0)
    assert (unknown.outcome, unknown.model) == ("model_not_found", None)
    assert all(heard.errors)
    assert [each.error for each in heard.requests] == [None] * 3  # not kept longer


async def test_other_routes_and_probes(server: Listening, heard: Heard) -> None:
    for path in ("/models", "/models/double", "/nowhere", "/metrics", "/health/ready"):
        await server.ask(request(path, b"", method="GET"))
    await until(lambda: len(heard.requests) == 3)
    assert [(each.path, each.route, each.status) for each in heard.requests] == [
        ("/models", "/models", 200),
        ("/models/double", "/models/{name}", 200),
        ("/nowhere", "", 404),
    ]


async def test_sinks_can_be_added_and_removed(server: Listening, heard: Heard) -> None:
    assert (await server.ask(ask_for(1, x_leave="1"))).status == 200
    assert heard.requests == []  # but its batch was told
    ((_, traces),) = heard.batches
    assert traces == []
    other = Heard("f" * 32)
    server.service.tracing.add(other)
    await server.ask(ask_for(2))
    (trace,) = other.requests
    assert trace.log_ids() == {"trace_id": "f" * 32, "span_id": "1" * 16}
    for sink in (heard, other, other):
        server.service.tracing.remove(sink)
    assert not server.service.tracing.enabled
    await server.ask(ask_for(3))
    assert (len(heard.requests), len(other.requests)) == (1, 1)


async def test_repeated_headers_are_joined(server: Listening, heard: Heard) -> None:
    twice = ask_for(1).replace(b"\r\n\r\n", b"\r\nTraceState: a=1\r\nTracestate: b=2\r\n\r\n", 1)
    assert (await server.ask(twice)).status == 200
    assert heard.fields[0][b"tracestate"] == b"a=1,b=2"


async def test_calls_over_grpc(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    heard = Heard()
    async with serving(tmp_path) as server:
        server.listening.service.tracing.add(heard)
        await server.infer(row(), metadata=(("tracestate", "a=1"), ("tracestate", "b=2")))
        await server.ask("ModelReady", name="double")
        await server.ask("ServerReady")  # a probe
        with pytest.raises(grpc.aio.AioRpcError):
            await server.infer(row(model="none"))
    assert heard.fields[0][b"tracestate"] == b"a=1,b=2"
    infer, ready, failed = heard.requests
    assert (infer.method, infer.route) == ("", "/inference.GRPCInferenceService/ModelInfer")
    assert (infer.status, infer.items, len(infer.batches)) == (200, 1, 1)
    assert ready.route == "/inference.GRPCInferenceService/ModelReady"
    assert (failed.status, failed.outcome) == (404, "model_not_found")


@pytest.mark.parametrize("method", ["gate", "wants", "batch_ended", "request_ended"])
async def test_a_failing_sink_does_not_affect_requests(
    server: Listening, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    sink = Heard()
    if method != "gate":
        monkeypatch.setattr(sink, method, broken)
    server.service.tracing.add(sink, broken if method == "gate" else None)  # type: ignore[arg-type]
    with capture_logs() as logs:
        for number in range(3):
            assert (await server.ask(ask_for(number))).status == 200
    assert [each["event"] for each in logs] == ["sink_failed"]
    assert not server.service.tracing.enabled


async def test_a_gate_limits_batches_to_traced_requests(
    server: Listening, doubles: Doubles
) -> None:
    sink = Heard()
    server.service.tracing.add(sink, lambda fields: b"x-leave" not in fields)
    assert (await server.ask(ask_for(1, x_leave="1"))).status == 200
    assert sink.batches == []
    doubles.hold()
    wires = [await server.connect(), await server.connect()]
    wires[0].send(ask_for(2, x_leave="1"))
    await until(lambda: bool(doubles.one.batches))
    wires[1].send(ask_for(2))  # it joins a batch that was handed over before
    await until(lambda: server.service.metrics.requests_open == 2)
    doubles.go_on()
    for wire in wires:
        assert (await wire.answer()).status == 200
    ((record, traces),) = sink.batches
    (trace,) = sink.requests
    assert traces == [trace]
    assert record.handed_over <= record.began < trace.began < record.ended
