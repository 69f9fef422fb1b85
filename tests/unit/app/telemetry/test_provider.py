"""Traces are put together as the variables say."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import (
    Getter,
    Setter,
    TextMapPropagator,
    default_getter,
    default_setter,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    format_trace_id,
    set_span_in_context,
)
from structlog.testing import capture_logs

from app.telemetry import provider
from app.telemetry.provider import Export, configured, resource_of
from app.telemetry.spans import Sampling
from app.telemetry.tracing import RequestTrace


@pytest.mark.parametrize(
    ("given", "name", "version"),
    [
        ("", "torchlane", "1.2"),
        ("service.version=mine", "torchlane", "mine"),
        ("service.name=digits", "digits", "1.2"),
        ("service.name=digits,service.version=mine", "digits", "mine"),
    ],
)
def test_variables_override_the_resource(
    monkeypatch: pytest.MonkeyPatch, given: str, name: str, version: str
) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", given)
    found = resource_of("1.2", 3).attributes
    assert (found["service.name"], found["service.version"]) == (name, version)
    assert found["torchlane.worker"] == 3


class ReadsMore(TextMapPropagator):
    """Finds a parent in a header that it does not name, as b3 does."""

    fields = {"b3"}  # noqa: RUF012 - as the interface has it

    def extract(
        self, carrier: Any, context: Context | None = None, getter: Getter[Any] = default_getter
    ) -> Context:
        (given,) = getter.get(carrier, "X-B3-TraceId") or ("0",)
        parent = SpanContext(int(given, 16), 7, True, TraceFlags(TraceFlags.SAMPLED))
        return set_span_in_context(NonRecordingSpan(parent), context)

    def inject(
        self, carrier: Any, context: Context | None = None, setter: Setter[Any] = default_setter
    ) -> None:
        """Nothing is passed on."""


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No variables but those of the test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in os.environ if each.startswith("OTEL_")]:
            patch.delenv(name)
        patch.setenv("OTEL_TRACES_EXPORTER", "console")
        yield patch
        for name in [each for each in os.environ if each.startswith("OTEL_")]:
            del os.environ[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_TRACES_EXPORTER", "console,zipkin"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_PROPAGATORS", "tracecontext,b4"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
        ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096"),
    ],
)
def test_a_wrong_value_is_named(environ: pytest.MonkeyPatch, name: str, value: str) -> None:
    environ.setenv(name, value)
    with pytest.raises(ValueError, match=name) as caught:
        configured()
    if "BSP" not in name:
        assert f"{name}='{value}' cannot be used: " in str(caught.value)
        assert "the names are" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/xml"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://collector:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:port"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://two words"),
    ],
)
def test_a_wrong_receiver_is_named(environ: pytest.MonkeyPatch, name: str, value: str) -> None:
    environ.setenv("OTEL_TRACES_EXPORTER", "otlp")
    environ.setenv(name, value)
    with pytest.raises(ValueError, match=value):
        configured()


@pytest.mark.parametrize("share", ["1.5", "-0.1", "half", "nan"])
def test_invalid_ratio_is_refused(environ: pytest.MonkeyPatch, share: str) -> None:
    environ.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    environ.setenv("OTEL_TRACES_SAMPLER_ARG", share)
    with pytest.raises(ValueError, match=f"OTEL_TRACES_SAMPLER_ARG='{share}' cannot be used"):
        configured()


def test_variables_are_read_by_the_sdk(environ: pytest.MonkeyPatch) -> None:
    environ.delenv("OTEL_TRACES_EXPORTER")
    for endpoint in ("collector:4317", "https://[::1]:4317/"):
        environ.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        found = configured()
        assert [each.__module__.split(".")[4] for each in found.exporters] == ["grpc"]
        assert found.sampling == (1.0, True)
        assert found.propagator.fields == {"traceparent", "tracestate", "baggage"}
    environ.setenv("OTEL_TRACES_EXPORTER", "otlp, console")
    environ.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    environ.setenv("OTEL_TRACES_SAMPLER", "PARENTBASED_TRACEIDRATIO")
    environ.setenv("OTEL_TRACES_SAMPLER_ARG", "0.01")
    environ.setenv("OTEL_PROPAGATORS", "none")
    found = configured()
    names = [each.__name__ for each in found.exporters]
    assert names == ["OTLPSpanExporter", "ConsoleSpanExporter"]
    assert found.sampling == (0.01, True)
    assert "TraceIdRatioBased{0.01}" in found.sampler.get_description()
    assert found.propagator.fields == set()
    environ.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    environ.delenv("OTEL_TRACES_SAMPLER_ARG")
    before = dict(os.environ)
    assert configured().sampling == (1.0, False)
    environ.delenv("OTEL_TRACES_EXPORTER")
    assert len(configured().exporters) == 1
    before.pop("OTEL_TRACES_EXPORTER")
    assert dict(os.environ) == before


async def test_propagator_may_read_unlisted_headers(
    environ: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = configured()
    sampling = Sampling(None, follows_parent=False)
    changed = known._replace(propagator=ReadsMore(), sampling=sampling)
    monkeypatch.setattr(provider, "configured", lambda: changed)
    export = Export("1.2", None)
    spans = export.spans
    fields = {b"x-b3-traceid": b"2a", b"b3": b""}
    assert spans.may_want(fields)
    token = spans.wants(RequestTrace("GET", "/", "", b"abc", 1.0), fields)
    assert token is not None
    assert token.trace_id == format_trace_id(42)
    await export.close(5.0)


def test_a_wrong_header_is_named_without_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key:SECRET")
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        Export("1", None)
    assert "SECRET" not in str(caught.value)


async def test_blank_variable_counts_as_unset(environ: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_BSP_SCHEDULE_DELAY", "OTEL_TRACES_SAMPLER"):
        environ.setenv(name, " ")
    environ.setenv("OTEL_TRACES_EXPORTER", "otlp")
    await Export("1.2", None).close(5.0)
    assert "OTEL_EXPORTER_OTLP_TIMEOUT" not in os.environ


async def test_hanging_receiver_does_not_block_others(
    environ: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, closed = threading.Event(), threading.Event()

    ends: list[Callable[[], object]] = [hangs.wait, closed.set]
    monkeypatch.setattr(BatchSpanProcessor, "shutdown", lambda _: ends.pop(0)())
    environ.setenv("OTEL_TRACES_EXPORTER", "otlp,console")
    try:
        with capture_logs() as logs:
            await Export("1.2", None).close(0.2)
        assert closed.is_set()
        assert [each["event"] for each in logs] == ["traces_not_sent"]
    finally:
        hangs.set()
