"""Traces are put together as the variables say."""

from __future__ import annotations

import os
import threading
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
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    format_trace_id,
    set_span_in_context,
)
from structlog.testing import capture_logs

from app.telemetry import provider
from app.telemetry.provider import Export, resource_of
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


@pytest.mark.parametrize("sampler", ["parentbased_traceidratio", "PARENTBASED_TRACEIDRATIO"])
async def test_propagator_may_read_unlisted_headers(
    monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    monkeypatch.setattr(provider, "_propagator", lambda _: ReadsMore())
    environ = {
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_PROPAGATORS": "b3",
        "OTEL_TRACES_SAMPLER": sampler,
        "OTEL_TRACES_SAMPLER_ARG": "0",
    }
    export = Export(environ, "1.2", None)
    spans = export.spans
    fields = {b"x-b3-traceid": b"2a"}
    assert spans.may_want(fields)
    token = spans.wants(RequestTrace("GET", "/", "", b"abc", 1.0), fields)
    assert token is not None
    assert token.trace_id == format_trace_id(42)
    await export.close(5.0)


async def test_blank_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_BSP_SCHEDULE_DELAY", "OTEL_TRACES_SAMPLER"):
        monkeypatch.setenv(name, " ")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "OTLP,")
    export = Export(os.environ, "1.2", None)
    await export.close(5.0)
    assert "OTEL_EXPORTER_OTLP_TIMEOUT" not in os.environ


async def test_hanging_receiver_does_not_block_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hangs, closed = threading.Event(), threading.Event()

    class Processor:
        made = 0

        def __init__(self, _: object) -> None:
            self._end = closed.set if Processor.made else hangs.wait
            Processor.made += 1

        def shutdown(self) -> None:
            self._end()

    monkeypatch.setattr(provider, "BatchSpanProcessor", Processor)
    environ = {"OTEL_TRACES_EXPORTER": "otlp,console"}
    try:
        with capture_logs() as logs:
            await Export(environ, "1.2", None).close(0.2)
        assert closed.is_set()
        assert [each["event"] for each in logs] == ["traces_not_sent"]
    finally:
        hangs.set()
