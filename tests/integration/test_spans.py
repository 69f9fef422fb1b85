"""Spans: their parents, links, times and attributes, on every way that a request may take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import grpc
import grpc.aio
import pytest
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBasedTraceIdRatio
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from structlog.testing import capture_logs

from app.codecs.tensor import TensorCodec
from app.telemetry.spans import Ids, Sampling, Spans
from app.telemetry.tracing import Tracing
from tests.integration.grpc_calls import row, serving
from tests.integration.listening import Doubles, Listening, until
from tests.integration.wire import ask_for, request

ASGI = {"expect": "100-continue"}  # such a request takes the ASGI way
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENTS = f"00-{TRACE}-{PARENT}"


class Made:
    """Spans that were made, by their names."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.exporter = InMemorySpanExporter()
        ids = Ids()
        provider = TracerProvider(
            ParentBasedTraceIdRatio(ratio), Resource({}), shutdown_on_exit=False, id_generator=ids
        )
        always = TracerProvider(ALWAYS_ON, Resource({}), shutdown_on_exit=False)
        for each in (provider, always):
            each.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.sink = Spans(
            provider.get_tracer("torchlane"),
            always.get_tracer("torchlane"),
            ids,
            CompositePropagator([TraceContextTextMapPropagator()]),
            Sampling(ratio, follows_parent=True),
        )

    def begin(self, tracing: Tracing) -> Made:
        tracing.add(self.sink, self.sink.may_want)
        return self

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    async def requests(self, count: int, name: str = "POST /predict") -> list[ReadableSpan]:
        await until(lambda: len(self.named(name)) >= count)
        found = self.named(name)
        assert len(found) == count
        return sorted(found, key=times_of)

    def below(self, parent: ReadableSpan) -> dict[str, ReadableSpan]:
        """Its children."""
        own = context_of(parent)
        found = {}
        for span in self.all:
            if span.parent is not None and span.parent.span_id == own.span_id:
                assert context_of(span).trace_id == own.trace_id
                assert span.name not in found
                found[span.name] = span
        return found


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def links_of(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def attributes_of(span: ReadableSpan) -> Mapping[str, object]:
    return span.attributes or {}


def times_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


@pytest.fixture
def server(doubling: Listening) -> Listening:
    return doubling


@pytest.fixture
def made(server: Listening) -> Made:
    return Made().begin(server.service.tracing)


@pytest.mark.parametrize("way", [{}, ASGI], ids=["fast path", "asgi"])
async def test_a_request_with_a_parent(server: Listening, made: Made, way: dict[str, str]) -> None:
    headers = {"traceparent": f"{PARENTS}-01", "tracestate": "a=1", "user-agent": "x/1", **way}
    answer = await server.ask(ask_for(1, host="there:81", x_request_id="mine", **headers))
    assert answer.status == 200
    (span,) = await made.requests(1)
    assert span.kind is SpanKind.SERVER
    assert span.parent is not None
    assert span.parent.is_remote
    assert format_span_id(span.parent.span_id) == PARENT
    own = context_of(span)
    assert format_trace_id(own.trace_id) == TRACE
    assert own.trace_state.to_header() == "a=1"
    assert span.status.status_code is StatusCode.UNSET
    assert attributes_of(span) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/predict",
        "server.address": "there",
        "server.port": 81,
        "torchlane.cache.hit": 0,
        "torchlane.cache.joined": 0,
        "torchlane.cache.miss": 1,
        "torchlane.items": 1,
        "torchlane.model": "double",
        "torchlane.request_id": "mine",
        "torchlane.version": 3,
        "url.path": "/predict",
        "url.scheme": "http",
        "user_agent.original": "x/1",
    }
    parts = made.below(span)
    assert list(parts) == ["decode", "queue", "forward", "encode"]
    moments = [moment for part in parts.values() for moment in times_of(part)]
    began, ended = times_of(span)
    assert [began, *moments, ended] == sorted([began, *moments, ended])
    batch = made.one("batch")
    assert batch.parent is None
    assert context_of(batch).trace_id != own.trace_id
    assert links_of(batch) == {own.span_id}
    assert links_of(parts["forward"]) == {context_of(batch).span_id}
    told = dict(attributes_of(batch))
    assert told.pop("torchlane.batch.compute_s") > 0  # type: ignore[operator]
    assert str(told.pop("torchlane.replica")).startswith("cpu")
    assert told == {
        "torchlane.batch.forwards": 1,
        "torchlane.batch.items": 1,
        "torchlane.device": "cpu",
        "torchlane.form": "fake",
        "torchlane.model": "double",
        "torchlane.version": 3,
    }


async def test_a_malformed_parent_is_ignored(server: Listening, made: Made) -> None:
    malformed = (
        "",
        "nonsense",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"{PARENTS}-01\r\ntraceparent: {PARENTS}-01",
    )
    for number, given in enumerate(malformed, 1):
        await server.ask(ask_for(1, traceparent=given))
        for span in await made.requests(number):
            assert span.parent is None, given
            assert format_trace_id(context_of(span).trace_id) != TRACE
    await server.ask(ask_for(1, traceparent=f"cc-{TRACE}-{PARENT}-01-of-a-later-version"))
    spans = await made.requests(len(malformed) + 1)
    assert TRACE in {format_trace_id(context_of(span).trace_id) for span in spans}


async def test_several_tracestate_headers_are_joined(server: Listening, made: Made) -> None:
    states = "a=1\r\nTraceState: b=2"
    await server.ask(ask_for(1, traceparent=f"{PARENTS}-01", tracestate=states))
    (span,) = await made.requests(1)
    assert context_of(span).trace_state.to_header() == "a=1,b=2"


async def test_the_parent_decides_sampling(server: Listening) -> None:
    made = Made(ratio=0.0).begin(server.service.tracing)
    await server.ask(ask_for(1))
    await server.ask(ask_for(2, traceparent=f"{PARENTS}-00"))
    await server.ask(ask_for(3, traceparent=f"{PARENTS}-01"))
    (span,) = await made.requests(1)
    assert format_trace_id(context_of(span).trace_id) == TRACE
    await until(lambda: len(made.all) == 6)  # the batch is sampled too, whatever its id


async def test_a_batch_links_all_its_requests(
    server: Listening, made: Made, doubles: Doubles
) -> None:
    doubles.hold()
    first = await server.connect()
    first.send(ask_for(0))
    await until(lambda: bool(doubles.one.batches))
    wires = [first]
    for number in (1, 2, 1):  # the last one joins the first of these
        wires.append(await server.connect())
        wires[-1].send(ask_for(number))
    await until(lambda: server.service.metrics.requests_open == 4)
    doubles.go_on()
    for wire in wires:
        assert (await wire.answer()).status == 200
    spans = await made.requests(4)
    ids = [context_of(span).span_id for span in spans]
    alone, together = sorted(made.named("batch"), key=lambda each: len(each.links))
    assert links_of(alone) == {ids[0]}
    assert links_of(together) == set(ids[1:])
    assert attributes_of(together)["torchlane.batch.items"] == 2
    assert [attributes_of(span)["torchlane.cache.joined"] for span in spans].count(1) == 1
    for span in spans[1:]:
        parts = made.below(span)
        assert links_of(parts["forward"]) == {context_of(together).span_id}
        assert times_of(parts["forward"]) == times_of(together) or len(parts) == 4


async def test_a_cached_answer_has_no_batch(server: Listening, made: Made) -> None:
    for _ in range(2):
        assert (await server.ask(ask_for(1))).status == 200
    _, cached = await made.requests(2)
    assert list(made.below(cached)) == ["decode", "encode"]
    assert attributes_of(cached)["torchlane.cache.hit"] == 1
    assert len(made.named("batch")) == 1


async def test_a_model_failure_marks_its_spans(server: Listening, made: Made) -> None:
    assert (await server.ask(ask_for(13))).status == 500
    (span,) = await made.requests(1)
    assert span.status.status_code is StatusCode.ERROR
    told = attributes_of(span)
    assert told["http.response.status_code"] == 500
    assert told["error.type"] == told["torchlane.error.code"] == "backend_failed"
    assert [event.name for event in span.events] == ["exception"]
    batch = made.one("batch")
    assert batch.status.status_code is StatusCode.ERROR
    (event,) = batch.events
    assert (event.attributes or {})["exception.message"] == "thirteen"
    assert list(made.below(span)) == ["decode", "queue", "forward"]


async def test_a_callers_mistake_is_not_an_error(server: Listening, made: Made) -> None:
    assert (await server.ask(request(body=b"{", chunk_bytes=None))).status == 422
    (span,) = await made.requests(1)
    assert span.status.status_code is StatusCode.UNSET
    told = attributes_of(span)
    assert told["torchlane.error.code"] == "invalid_input"
    assert "error.type" not in told
    assert list(made.below(span)) == ["decode"]


async def test_a_client_that_disconnects(server: Listening, made: Made, doubles: Doubles) -> None:
    doubles.hold()
    wire = await server.connect()
    wire.send(ask_for(1))
    await until(lambda: bool(doubles.one.batches))
    await wire.close()
    (span,) = await made.requests(1)
    told = attributes_of(span)
    assert told["torchlane.error.code"] == "abandoned"
    assert "http.response.status_code" not in told
    assert span.status.status_code is StatusCode.UNSET
    assert made.named("batch") == []
    doubles.go_on()
    await until(lambda: bool(made.named("batch")))
    batch = made.one("batch")
    assert links_of(batch) == {context_of(span).span_id}
    assert links_of(made.below(span)["forward"]) == {context_of(batch).span_id}


async def test_exemplars(server: Listening, made: Made) -> None:
    await server.ask(ask_for(1))
    await server.ask(ask_for(2, traceparent=f"{PARENTS}-00"))
    (span,) = await made.requests(1)
    plain = await server.ask(request("/metrics", b"", method="GET"))
    assert plain["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
    answer = await server.ask(request("/metrics", b"", method="GET", accept=accept))
    assert answer["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer["vary"] == "Accept"
    found = parse_openmetrics(answer.body.decode())  # type: ignore[no-untyped-call]
    families = {each.name: each for each in found}
    trace_id = format_trace_id(context_of(span).trace_id)
    for name in ("request", "queue", "compute"):
        samples = families[f"torchlane_{name}_seconds"].samples
        (shown,) = [each.exemplar for each in samples if each.exemplar]
        assert shown.labels == {"trace_id": trace_id}
    never = request("/metrics", b"", method="GET", accept="application/openmetrics-text;q=0")
    assert (await server.ask(never))["content-type"].startswith("text/plain")
    series = {each.name for each in parse_text(plain.body.decode())}
    assert series == set(families)


async def test_log_lines_name_the_trace(
    server: Listening, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    with capture_logs() as logs:
        await server.ask(ask_for(13, traceparent=f"{PARENTS}-01"))
        monkeypatch.setattr(TensorCodec, "decode_numbers", broken)
        failed = ask_for(1, traceparent=f"{PARENTS}-01")
        assert (await server.ask(failed)).status == 500
    lines = {each["event"]: each for each in logs}
    assert lines["model_failed"]["trace_ids"] == [TRACE]
    _, span = await made.requests(2)
    assert lines["unhandled_error"]["trace_id"] == TRACE
    assert lines["unhandled_error"]["span_id"] == format_span_id(context_of(span).span_id)
    (event,) = span.events
    assert "a bug" in str((event.attributes or {})["exception.stacktrace"])


async def test_other_routes(server: Listening, made: Made) -> None:
    for path in ("/models/double", "/nowhere"):
        await server.ask(request(path, b"", method="GET"))
    wire = await server.connect()
    wire.send(request("/models/double", b"", method="HEAD"))
    await wire.answer(body=False)
    await until(lambda: len(made.all) == 3)
    known, unknown, head = sorted(made.all, key=times_of)
    assert known.name == "GET /models/{name}"
    assert attributes_of(known)["http.route"] == "/models/{name}"
    assert unknown.name == "GET"
    assert attributes_of(unknown)["http.response.status_code"] == 404
    assert head.name == "HEAD /models/{name}"


async def test_calls_over_grpc(double: Path) -> None:
    made = Made()
    async with serving(double) as server:
        made.begin(server.listening.service.tracing)
        await server.infer(row(), metadata=(("traceparent", f"{PARENTS}-01"),))
        with pytest.raises(grpc.aio.AioRpcError):
            await server.infer(row(model="none"))
        await server.ask("ModelReady", name="double")
    good, failed = made.named("inference.GRPCInferenceService/ModelInfer")
    assert format_trace_id(context_of(good).trace_id) == TRACE
    assert list(made.below(good)) == ["decode", "queue", "forward", "encode"]
    told = attributes_of(good)
    assert told["rpc.system.name"] == "grpc"
    assert told["rpc.method"] == "inference.GRPCInferenceService/ModelInfer"
    assert told["rpc.response.status_code"] == "OK"
    assert "http.route" not in told
    assert attributes_of(failed)["rpc.response.status_code"] == "NOT_FOUND"
    assert made.one("inference.GRPCInferenceService/ModelReady").kind is SpanKind.SERVER
