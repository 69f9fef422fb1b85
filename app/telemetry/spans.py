"""Spans of OpenTelemetry, made of the traces that its sampler chooses.

A request is a span with children for decode, queue, forward and encode. A batch is a span of a
trace of its own, with links to the spans of all its requests that are sampled; the forward of each
request links back. The ids of a request's span are chosen at its head, for batches to link to; all
spans are made when their times are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, TextMapPropagator
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    format_span_id,
    format_trace_id,
    get_current_span,
)

from app.telemetry.attributes import (
    SERVER_ERROR,
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
from app.telemetry.tracing import BatchRecord, RequestTrace, Token
from app.types import ModelId

NO_PARENT = Context()
LOW_BITS = (1 << 64) - 1  # of a trace id: those that the sampler by ratio looks at
MOST_BATCHES = 32  # of one request, with spans of their own
MOST_ERRORS = 8  # of one batch
MOST_FORMS = 4096  # that are remembered
UNSET = Status(StatusCode.UNSET)
# What a parent that is not sampled says: valid, of version 00, without the flag.
NOT_SAMPLED = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]")


class _Fields(Getter[Mapping[bytes, bytes]]):
    """Reads headers for a propagator."""

    def get(self, carrier: Mapping[bytes, bytes], key: str) -> list[str] | None:
        value = carrier.get(key.lower().encode())
        return None if value is None else [value.decode("latin-1")]

    def keys(self, carrier: Mapping[bytes, bytes]) -> list[str]:
        return [name.decode("latin-1") for name in carrier]


_FIELDS = _Fields()


class _Begun:
    """A request that is sampled.

    Args:
        context: of its span.
        parent: of that; None: it begins a trace.
        attributes: what was known at its head.
        offset_ns: from `time.perf_counter` to the time of day.
    """

    __slots__ = ("attributes", "context", "offset_ns", "parent")

    def __init__(
        self,
        context: SpanContext,
        parent: SpanContext | None,
        attributes: Attributes,
        offset_ns: int,
    ) -> None:
        self.context = context
        self.parent = parent
        self.attributes = attributes
        self.offset_ns = offset_ns


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is sampled.

    Attributes:
        sampler: decides.
        ids: makes those of traces and spans.
        propagator: reads the caller's headers.
        ratio: the share of traces that the sampler takes by their ids; None: something else
            decides.
        follows_parent: it leaves out a request whose parent is not sampled.
    """

    sampler: Sampler
    ids: IdGenerator
    propagator: TextMapPropagator
    ratio: float | None
    follows_parent: bool


class Spans:
    """A sink that makes spans.

    The SDK's own spans can be changed by several threads until they end, and cost five times as
    much as what it calls a readable span. That is all that processors and exporters see of either.

    Args:
        processors: take each span.
        sampling: of requests.
        resource: of all spans.
        scope: likewise.
        form_of: names the form that runs so many items of a model on a replica; empty: not known.
    """

    def __init__(
        self,
        processors: Sequence[SpanProcessor],
        sampling: Sampling,
        resource: Resource,
        scope: InstrumentationScope,
        form_of: Callable[[ModelId, str, int], str],
    ) -> None:
        self._processors = processors
        self._sampler = sampling.sampler
        self._ids = sampling.ids
        self._propagator = sampling.propagator
        self._parent_fields = [field.encode() for field in sampling.propagator.fields]
        ratio = sampling.ratio
        self._bound = None if ratio is None else TraceIdRatioBased.get_bound_for_rate(ratio)
        self._leaves_out = sampling.follows_parent and b"traceparent" in self._parent_fields
        self._next_id = 0  # of a trace, that may be sampled
        self._flags = TraceFlags.SAMPLED
        if sampling.ids.is_trace_id_random():
            self._flags |= TraceFlags.RANDOM_TRACE_ID
        self._resource = resource
        self._scope = scope
        self._form_of = form_of
        self._forms: dict[tuple[ModelId, str, int], str] = {}  # to find one takes long

    def may_want(self, fields: Mapping[bytes, bytes]) -> bool:
        """Whether a request with these headers may be sampled: all that most requests cost."""
        self._next_id = 0
        for field in self._parent_fields:
            if field in fields:
                given = fields.get(b"traceparent", b"")
                return not (self._leaves_out and NOT_SAMPLED.fullmatch(given))
        if self._bound is None:
            return True
        self._next_id = self._ids.generate_trace_id()  # what the sampler would look at
        return self._next_id & LOW_BITS < self._bound

    def wants(self, trace: RequestTrace, fields: Mapping[bytes, bytes]) -> Token | None:
        """See `Sink`; `may_want` is its gate."""
        context, parent = NO_PARENT, None
        if any(field in fields for field in self._parent_fields):
            context = self._propagator.extract(fields, NO_PARENT, _FIELDS)
            found = get_current_span(context).get_span_context()
            parent = found if found.is_valid else None
        if parent is not None:
            trace_id = parent.trace_id
            flags = TraceFlags.SAMPLED | (parent.trace_flags & TraceFlags.RANDOM_TRACE_ID)
        else:
            trace_id, flags = self._next_id or self._ids.generate_trace_id(), self._flags
        attributes = of_head(trace, fields)
        result = self._sampler.should_sample(
            context, trace_id, name_of(trace), SpanKind.SERVER, attributes
        )
        if result.decision is not Decision.RECORD_AND_SAMPLE:
            return None
        if result.attributes is not attributes:
            attributes |= result.attributes
        span_id = self._ids.generate_span_id()
        own = SpanContext(trace_id, span_id, False, TraceFlags(flags), result.trace_state)
        begun = _Begun(own, parent, attributes, day_offset_ns())
        return Token(begun, format_trace_id(trace_id), format_span_id(span_id))

    def batch_ended(self, record: BatchRecord) -> None:
        """See `Sink`."""
        contexts = self._sampled(record.traces)
        if not contexts:
            return
        attributes = of_batch(record)
        attributes["torchlane.batch.forwards"] = record.forwards
        attributes["torchlane.batch.compute_s"] = record.compute_s
        form = self._form(record)
        if form:
            attributes["torchlane.form"] = form
        offset_ns = day_offset_ns()
        ended = _ns(record.ended, offset_ns)
        events: list[Event] = []
        status = UNSET
        if record.fault is not None or record.errors:
            errors = [] if record.fault is None else [record.fault]
            errors += record.errors[:MOST_ERRORS]
            events = [error_event(error, ended) for error in errors]
            status = Status(StatusCode.ERROR, text_of(errors[0]))
            attributes[ERROR_TYPE] = type(errors[0]).__qualname__
        self._send(
            ReadableSpan(
                name="batch",
                context=self._batch(record),
                resource=self._resource,
                attributes=attributes,
                events=events,
                links=[Link(context) for context in contexts],
                status=status,
                start_time=_ns(record.began, offset_ns),
                end_time=ended,
                instrumentation_scope=self._scope,
            )
        )

    def request_ended(self, trace: RequestTrace, token: Token) -> None:
        """See `Sink`."""
        begun = token.kept
        if not isinstance(begun, _Begun):
            raise TypeError("bug: another sink's token")
        # A body that cannot be read is decoded until the request ends.
        decoded = trace.decoded or (trace.ended if trace.received else 0.0)
        self._child(begun, "decode", trace.received or trace.began, decoded)
        self._computing(trace, begun)
        self._child(begun, "encode", trace.answered, trace.encoded)
        ended = _ns(trace.ended, begun.offset_ns)
        events: list[Event] = []
        status = UNSET
        if trace.status >= SERVER_ERROR:
            status = Status(StatusCode.ERROR, text_of(trace.error) if trace.error else None)
            events = [error_event(trace.error, ended)] if trace.error else []
        attributes = begun.attributes
        add_end(attributes, trace)
        self._send(
            ReadableSpan(
                name=name_of(trace),  # the route may not have been known before
                context=begun.context,
                parent=begun.parent,
                resource=self._resource,
                attributes=attributes,
                events=events,
                kind=SpanKind.SERVER,
                status=status,
                start_time=_ns(trace.began, begun.offset_ns),
                end_time=ended,
                instrumentation_scope=self._scope,
            )
        )

    def _computing(self, trace: RequestTrace, begun: _Begun) -> None:
        """The spans from the acceptance of a request to its last outcome."""
        since = trace.decoded
        batches = trace.batches
        if len(batches) > 1:
            batches = sorted(batches, key=_began)[:MOST_BATCHES]
        if not batches and trace.is_accepted and since and trace.outcome != "ok":  # in vain
            self._child(begun, "queue", since, trace.ended)
        for record in batches:
            if record.began > since:
                self._child(begun, "queue", since, record.began)
            ended = record.ended or trace.ended
            began = min(max(since, record.began), ended)
            links = [Link(self._batch(record))]
            self._child(begun, "forward", began, ended, of_forward(record), links)
            if record.fault is not None:
                since = ended  # items that moved to another replica wait again

    def _child(
        self,
        begun: _Begun,
        name: str,
        began: float,
        ended: float,
        attributes: Attributes | None = None,
        links: Sequence[Link] = (),
    ) -> None:
        """A part of a request, if it came to its end."""
        if not ended:
            return
        of = begun.context
        span_id = self._ids.generate_span_id()
        self._send(
            ReadableSpan(
                name=name,
                context=SpanContext(of.trace_id, span_id, False, of.trace_flags, of.trace_state),
                parent=of,
                resource=self._resource,
                attributes=attributes,
                links=links,
                start_time=_ns(began, begun.offset_ns),
                end_time=_ns(ended, begun.offset_ns),
                instrumentation_scope=self._scope,
            )
        )

    def _send(self, span: ReadableSpan) -> None:
        for processor in self._processors:
            processor.on_end(span)

    def _batch(self, record: BatchRecord) -> SpanContext:
        """The context of a batch's span, which may be made later."""
        if not isinstance(record.kept, SpanContext):
            ids = self._ids
            record.kept = SpanContext(
                ids.generate_trace_id(), ids.generate_span_id(), False, TraceFlags(self._flags)
            )
        return record.kept

    def _form(self, record: BatchRecord) -> str:
        key = (record.model, record.replica, record.items)
        form = self._forms.get(key)
        if form is None:
            form = self._form_of(*key)
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            self._forms[key] = form
        return form

    def _sampled(self, traces: Sequence[RequestTrace]) -> list[SpanContext]:
        """The spans of requests, as far as they are sampled."""
        found = []
        for trace in traces:
            token = trace.token(self)
            if token is not None and isinstance(token.kept, _Begun):
                found.append(token.kept.context)
        return found


def _ns(moment: float, offset_ns: int) -> int:
    """A moment of `time.perf_counter` as nanoseconds since 1970."""
    return int(moment * 1e9) + offset_ns


def _began(record: BatchRecord) -> float:
    return record.began
