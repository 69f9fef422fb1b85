"""Spans of OpenTelemetry for the requests that its sampler chooses.

A request is a span with children for decode, queue, forward and encode. A batch is a span in a
trace of its own, with links to the spans of all its sampled requests; the forward of each request
links back. The span of a request begins at its head, so that batches can link to it; all times are
those of its `RequestTrace` and of the `BatchRecord`s.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from opentelemetry import trace as trace_api
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, TextMapPropagator
from opentelemetry.sdk.trace import Span
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import (
    Link,
    SpanKind,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)

from app.telemetry.attributes import (
    MOST_OF_HOST,
    Attributes,
    add_end,
    error_attributes,
    error_type_of,
    name_of,
    of_batch,
    of_forward,
    of_head,
    text_of,
)
from app.telemetry.clocks import day_offset_ns
from app.telemetry.gate import SamplingGate
from app.telemetry.tracing import MOST_CHARACTERS, BatchRecord, RequestTrace, Token

NO_PARENT = Context()
LOW_BITS = 64  # of a trace id, which the ratio sampler checks
MOST_ERRORS = 8  # per batch
MOST_BATCHES = 32  # of one request, with spans of their own


class Ids(RandomIdGenerator):
    """Random ids.

    Attributes:
        bound: the ratio sampler's; trace ids below it are chosen while it is set, because the gate
            has sampled already.
    """

    bound: int | None = None

    def generate_trace_id(self) -> int:
        """A trace id."""
        trace_id = super().generate_trace_id()
        if not self.bound:
            return trace_id
        below = random.randrange(self.bound)  # nosec B311
        return (trace_id >> LOW_BITS << LOW_BITS | below) or 1


class _Fields(Getter[Mapping[bytes, bytes]]):
    """Reads headers for a propagator."""

    def get(self, carrier: Mapping[bytes, bytes], key: str) -> list[str] | None:
        value = carrier.get(key.lower().encode())
        return None if value is None else [value.decode("latin-1")]

    def keys(self, carrier: Mapping[bytes, bytes]) -> list[str]:
        return [name.decode("latin-1") for name in carrier]


_FIELDS = _Fields()


class Sampling(NamedTuple):
    """How requests are sampled.

    Attributes:
        ratio: the share of traces that the sampler chooses by their ids; None if it decides
            otherwise.
        follows_parent: whether it skips requests whose parent is not sampled.
    """

    ratio: float | None
    follows_parent: bool


class Spans:
    """A sink that creates spans.

    Args:
        tracer: the SDK's, with the sampler, for requests.
        parts: one that samples all, for what belongs to sampled requests.
        ids: the tracer's generator of ids.
        propagator: reads the caller's headers.
        sampling: how the tracer's sampler decides.

    Attributes:
        may_want: the gate of this sink.
    """

    def __init__(
        self,
        tracer: Tracer,
        parts: Tracer,
        ids: Ids,
        propagator: TextMapPropagator,
        sampling: Sampling,
    ) -> None:
        self._tracer = tracer
        self._parts = parts
        self._ids = ids
        self._propagator = propagator
        # The server does not use baggage.
        self._parent_fields = [each.encode() for each in propagator.fields - {"baggage"}]
        ratio = sampling.ratio
        self._bound = None if ratio is None else TraceIdRatioBased.get_bound_for_rate(ratio)
        if self._bound == 0:
            ratio = 0.0  # too small for the sampler to choose any trace
        gate = SamplingGate(self._parent_fields, ratio, leaves_out=sampling.follows_parent)
        self.may_want = gate.may_want

    def wants(self, trace: RequestTrace, fields: Mapping[bytes, bytes]) -> Token | None:
        context = NO_PARENT
        if any(field in fields for field in self._parent_fields):
            context = self._propagator.extract(fields, NO_PARENT, _FIELDS)
        else:
            self._ids.bound = self._bound
        agent = fields.get(b"user-agent")
        span = self._tracer.start_span(
            name_of(trace),
            context,
            SpanKind.SERVER,
            of_head(
                trace,
                fields.get(b"host", b"")[:MOST_OF_HOST],
                None if agent is None else agent[:MOST_CHARACTERS],
            ),
            start_time=int(trace.began * 1e9) + day_offset_ns(),
        )
        self._ids.bound = None
        own = span.get_span_context()
        if not isinstance(span, Span) or not own.trace_flags.sampled:
            return None
        return Token(span, format_trace_id(own.trace_id), format_span_id(own.span_id))

    def batch_ended(self, record: BatchRecord) -> None:
        tokens = [trace.token(self) for trace in record.traces]
        spans = [each.kept for each in tokens if each is not None and isinstance(each.kept, Span)]
        if not spans:
            return
        batch = self._batch(record)
        for span in spans:
            batch.add_link(span.get_span_context())
        batch.set_attributes(of_batch(record))
        errors = record.errors[:MOST_ERRORS]
        ended_ns = _ns(batch, record.began, record.ended)
        if errors:
            kind = type(errors[0]).__qualname__
            batch.set_attribute(ERROR_TYPE, kind)
            _add_errors(batch, errors, ended_ns)
        batch.end(ended_ns)

    def request_ended(self, trace: RequestTrace, token: Token) -> None:
        """See `Sink`; the span of the whole request is the last to end."""
        span = token.kept
        if not isinstance(span, Span):
            raise TypeError("bug: another sink's token")
        parts = _Parts(self._parts, span, trace)
        # A body that cannot be read is decoded until the request ends.
        decoded = trace.decoded or (trace.ended if trace.received else 0.0)
        parts.add("decode", trace.received or trace.began, decoded)
        self._add_computing(parts, trace)
        parts.add("encode", trace.answered, trace.encoded)
        span.update_name(name_of(trace))
        attributes: Attributes = {}
        add_end(attributes, trace)
        span.set_attributes(attributes)
        ended_ns = _ns(span, trace.began, trace.ended)
        if error_type_of(trace):
            _add_errors(span, [trace.error] if trace.error else [], ended_ns)
        span.end(ended_ns)

    def _add_computing(self, parts: _Parts, trace: RequestTrace) -> None:
        """Add the spans from the acceptance of a request to its last outcome."""
        failed = trace.decoded
        for record, began, ended, fault in trace.runs[:MOST_BATCHES]:
            # Items moved to another replica wait again; other items may have run at the same time.
            since = failed if began >= failed else trace.decoded
            if began > since:
                parts.add("queue", since, began)
            links = [Link(self._batch(record).get_span_context())]
            parts.add("forward", max(since, began), ended, of_forward(record), links)
            if fault:
                failed = max(failed, ended)
        if trace.left_queued:
            parts.add("queue", failed, trace.ended)

    def _batch(self, record: BatchRecord) -> trace_api.Span:
        """The span of a batch that has begun."""
        if not isinstance(record.kept, trace_api.Span):
            start_ns = int(record.began * 1e9) + day_offset_ns()
            record.kept = self._parts.start_span("batch", NO_PARENT, start_time=start_ns)
        return record.kept


class _Parts:
    """Creates the child spans of a request's span; its work may go on if the caller left."""

    def __init__(self, tracer: Tracer, of: Span, trace: RequestTrace) -> None:
        self._tracer = tracer
        self._of = of
        self._context = set_span_in_context(of, NO_PARENT)
        self._trace = trace

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
        ended = min(ended, self._trace.ended)
        start_ns, end_ns = (
            _ns(self._of, self._trace.began, each) for each in (min(began, ended), ended)
        )
        self._tracer.start_span(
            name, self._context, attributes=attributes, links=links, start_time=start_ns
        ).end(end_ns)


def _add_errors(span: trace_api.Span, errors: Sequence[BaseException], at_ns: int) -> None:
    """Mark a span as failed, without the errors' frames, which hold tensors."""
    span.set_status(StatusCode.ERROR, text_of(errors[0]) if errors else None)
    for each in errors:
        span.add_event("exception", error_attributes(each), at_ns)


def _ns(span: trace_api.Span, began: float, moment: float) -> int:
    """A moment of `time.perf_counter` as nanoseconds since 1970, by the start of a span."""
    start_ns = span.start_time if isinstance(span, Span) else None
    return (start_ns or 0) + int((moment - began) * 1e9)
