"""Creates the spans of ended requests and batches, in the threads that export them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from app.telemetry.attributes import (
    Attributes,
    add_end,
    error_event,
    name_of,
    of_batch,
    of_forward,
    of_head,
    text_of,
)
from app.telemetry.clocks import day_offset_ns
from app.telemetry.tracing import BatchRecord, RequestTrace

IDS = RandomIdGenerator()
FLAGS = TraceFlags(TraceFlags.SAMPLED | TraceFlags.RANDOM_TRACE_ID)
MOST_BATCHES = 32  # of one request, with spans of their own


class Head(NamedTuple):
    """A sampled request.

    Attributes:
        trace_id: the trace id of its span; the next three are also of this span.
        parent: the parent's span; None if the request begins a trace.
        host: its Host header.
        agent: its User-Agent header, if any.
        added: attributes added by the sampler.
    """

    trace_id: int
    span_id: int
    flags: TraceFlags
    state: TraceState | None
    parent: SpanContext | None
    host: bytes
    agent: bytes | None
    added: Attributes | None

    def context(self) -> SpanContext:
        """The context of its span."""
        return SpanContext(self.trace_id, self.span_id, False, self.flags, self.state)


class Failure(NamedTuple):
    """The errors of a span, without their frames, which hold tensors."""

    kind: str
    status: Status
    events: Sequence[Event]


FINE = Failure("", Status(StatusCode.UNSET), ())


class End(NamedTuple):
    """The data recorded at the end of a request or batch, for spans that are created later.

    Attributes:
        failure: the errors.
        offset_ns: offset from our clock to the time of day, which may be changed by then.
    """

    failure: Failure
    offset_ns: int


class SpanMaker:
    """Creates the spans of one process.

    The SDK's own spans can be changed by several threads until they end, and cost five times as
    much as its readable spans, which are all that processors and exporters need.

    Args:
        resource: the resource of all spans.
        scope: the scope of all spans.
    """

    def __init__(self, resource: Resource, scope: InstrumentationScope) -> None:
        self._common = {"resource": resource, "instrumentation_scope": scope}

    def span(
        self,
        name: str,
        context: SpanContext,
        times: tuple[float, float],
        offset_ns: int,
        **more: Any,
    ) -> ReadableSpan:
        """A span.

        Args:
            name: the name of the span.
            context: its ids.
            times: its start and end, of `time.perf_counter`.
            offset_ns: see `End`.
            more: further arguments of `ReadableSpan`.
        """
        began, ended = times
        more |= self._common
        return ReadableSpan(
            name, context, start_time=_ns(began, offset_ns), end_time=_ns(ended, offset_ns), **more
        )

    def batch(self, record: BatchRecord, heads: Sequence[Head], end: End) -> list[ReadableSpan]:
        """The span of a batch, with links to those of its sampled requests."""
        failure, offset_ns = end
        attributes = of_batch(record)
        if failure.kind:
            attributes[ERROR_TYPE] = failure.kind
        return [
            self.span(
                "batch",
                _batch(record),
                (record.began, record.ended),
                offset_ns,
                attributes=attributes,
                events=failure.events,
                links=[Link(head.context()) for head in heads],
                status=failure.status,
            )
        ]

    def request(self, trace: RequestTrace, head: Head, end: End) -> list[ReadableSpan]:
        """The spans of a request; the span of the whole request is the last."""
        failure, offset_ns = end
        parts = _Parts(self, head.context(), trace.ended, offset_ns)
        # A body that cannot be read is decoded until the request ends.
        decoded = trace.decoded or (trace.ended if trace.received else 0.0)
        parts.add("decode", trace.received or trace.began, decoded)
        _add_computing(parts, trace)
        parts.add("encode", trace.answered, trace.encoded)
        attributes = of_head(trace, head.host, head.agent)
        if head.added:
            attributes |= head.added
        add_end(attributes, trace)
        parts.made.append(
            self.span(
                name_of(trace),
                parts.of,
                (trace.began, trace.ended),
                offset_ns,
                parent=head.parent,
                attributes=attributes,
                events=failure.events,
                kind=SpanKind.SERVER,
                status=failure.status,
            )
        )
        return parts.made


class _Parts:
    """Creates the child spans of a request's span.

    Args:
        maker: creates each span.
        of: the span of the request.
        ended: when the request ended; its work may continue if the caller left.
        offset_ns: see `End`.
    """

    def __init__(self, maker: SpanMaker, of: SpanContext, ended: float, offset_ns: int) -> None:
        self._maker = maker
        self._ended = ended
        self._offset_ns = offset_ns
        self.of = of
        self.made: list[ReadableSpan] = []

    def add(
        self,
        name: str,
        began: float,
        ended: float,
        attributes: Attributes | None = None,
        links: Sequence[Link] = (),
    ) -> None:
        """Add a part, if it has ended."""
        if not ended:
            return
        of, ended = self.of, min(ended, self._ended)
        span_id = IDS.generate_span_id()
        self.made.append(
            self._maker.span(
                name,
                SpanContext(of.trace_id, span_id, False, of.trace_flags, of.trace_state),
                (min(began, ended), ended),
                self._offset_ns,
                parent=of,
                attributes=attributes,
                links=links,
            )
        )


def end_of(moment: float, errors: Sequence[BaseException] = (), kind: str = "") -> End:
    """The end of a request or a batch.

    Args:
        moment: the time of the end.
        errors: the errors, of which the first gives the description; empty if unknown.
        kind: the type of the errors; empty if there was no error.
    """
    offset_ns = day_offset_ns()
    if not kind:
        return End(FINE, offset_ns)
    description = text_of(errors[0]) if errors else None
    events = [error_event(each, _ns(moment, offset_ns)) for each in errors]
    return End(Failure(kind, Status(StatusCode.ERROR, description), events), offset_ns)


def _add_computing(parts: _Parts, trace: RequestTrace) -> None:
    """Add the spans from the acceptance of a request to its last outcome."""
    failed = trace.decoded
    for record, began, ended, fault in trace.runs[:MOST_BATCHES]:
        # Items moved to another replica wait again; other items may have run at the same time.
        since = failed if began >= failed else trace.decoded
        if began > since:
            parts.add("queue", since, began)
        links = [Link(_batch(record))]
        parts.add("forward", max(since, began), ended, of_forward(record), links)
        if fault:
            failed = max(failed, ended)
    if trace.left_queued:
        parts.add("queue", failed, trace.ended)


def _batch(record: BatchRecord) -> SpanContext:
    """The context of a batch's span, which may be created later."""
    if not isinstance(record.kept, SpanContext):
        record.kept = SpanContext(IDS.generate_trace_id(), IDS.generate_span_id(), False, FLAGS)
    return record.kept


def _ns(moment: float, offset_ns: int) -> int:
    """A moment of `time.perf_counter` as nanoseconds since 1970."""
    return int(moment * 1e9) + offset_ns
