"""Spans of OpenTelemetry, made of the traces that its sampler chooses.

A request is a span with children for decode, queue, forward and encode. A batch is a span of a
trace of its own, with links to the spans of all its requests that are sampled; the forward of each
request links back. The ids of a request's span are chosen at its head, for batches to link to; all
spans are made when they are exported, of notes that are written when their times are known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, TextMapPropagator
from opentelemetry.sdk.trace import Event, SpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, TraceIdRatioBased
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import (
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
    of_head,
    text_of,
)
from app.telemetry.clocks import day_offset_ns
from app.telemetry.gate import SamplingGate
from app.telemetry.late import LateSpan
from app.telemetry.making import BatchNote, Forward, RequestNote, SpanMaker, ns_of
from app.telemetry.tracing import BatchRecord, RequestTrace, Token
from app.types import ModelId

NO_PARENT = Context()
LOW_BITS = (1 << 64) - 1  # of a trace id: those that the sampler by ratio looks at
MOST_BATCHES = 32  # of one request, with spans of their own
MOST_ERRORS = 8  # of one batch
MOST_FORMS = 4096  # that are remembered
UNSET = Status(StatusCode.UNSET)
NO_EVENTS: list[Event] = []


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
    """

    __slots__ = ("attributes", "context", "parent")

    def __init__(
        self, context: SpanContext, parent: SpanContext | None, attributes: Attributes
    ) -> None:
        self.context = context
        self.parent = parent
        self.attributes = attributes


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
    """A sink that has spans made, of what it notes of requests and batches.

    Args:
        processors: take each `LateSpan`.
        sampling: of requests.
        maker: makes the spans.
        form_of: names the form that runs so many items of a model on a replica; empty: not known.

    Attributes:
        may_want: its gate.
    """

    def __init__(
        self,
        processors: Sequence[SpanProcessor],
        sampling: Sampling,
        maker: SpanMaker,
        form_of: Callable[[ModelId, str, int], str],
    ) -> None:
        self._processors = processors
        self._sampler = sampling.sampler
        self._ids = sampling.ids
        self._propagator = sampling.propagator
        self._parent_fields = [field.encode() for field in sampling.propagator.fields]
        ratio = sampling.ratio
        self._bound = None if ratio is None else TraceIdRatioBased.get_bound_for_rate(ratio)
        if self._bound == 0:
            ratio = 0.0  # too small for the sampler to take any
        gate = SamplingGate(self._parent_fields, ratio, leaves_out=sampling.follows_parent)
        self.may_want = gate.may_want
        self._flags = TraceFlags.SAMPLED
        if sampling.ids.is_trace_id_random():
            self._flags |= TraceFlags.RANDOM_TRACE_ID
        self._maker = maker
        self._form_of = form_of
        self._forms: dict[tuple[ModelId, str, int], str] = {}  # to find one takes long

    def wants(self, trace: RequestTrace, fields: Mapping[bytes, bytes]) -> Token | None:
        """See `Sink`."""
        ids, attributes = self._ids, of_head(trace, fields)
        parent, state, flags = None, None, self._flags
        trace_id = ids.generate_trace_id()
        if self._bound is not None and not any(field in fields for field in self._parent_fields):
            trace_id = (trace_id & ~LOW_BITS) | random.randrange(self._bound)  # nosec B311
        else:
            context = self._propagator.extract(fields, NO_PARENT, _FIELDS)
            found = get_current_span(context).get_span_context()
            if found.is_valid:
                parent, trace_id = found, found.trace_id
                flags = TraceFlags.SAMPLED | (found.trace_flags & TraceFlags.RANDOM_TRACE_ID)
            result = self._sampler.should_sample(
                context, trace_id, name_of(trace), SpanKind.SERVER, attributes
            )
            if result.decision is not Decision.RECORD_AND_SAMPLE:
                return None
            if result.attributes is not attributes:
                attributes |= result.attributes
            state = result.trace_state
        own = SpanContext(trace_id, ids.generate_span_id(), False, TraceFlags(flags), state)
        begun = _Begun(own, parent, attributes)
        return Token(begun, format_trace_id(trace_id), format_span_id(own.span_id))

    def batch_ended(self, record: BatchRecord) -> None:
        """See `Sink`."""
        contexts = self._sampled(record.traces)
        if not contexts:
            return
        attributes = of_batch(record)
        form = self._form(record)
        if form:
            attributes["torchlane.form"] = form
        offset_ns = day_offset_ns()
        status, events = UNSET, NO_EVENTS
        if record.fault is not None or record.errors:
            errors = [] if record.fault is None else [record.fault]
            errors += record.errors[:MOST_ERRORS]
            attributes[ERROR_TYPE] = type(errors[0]).__qualname__
            status, events = _told(errors, ns_of(record.ended, offset_ns))
        context = self._batch(record)
        note = BatchNote(
            context,
            contexts,
            attributes,
            record.began,
            record.ended,
            offset_ns,
            status,
            events,
        )
        self._send(LateSpan(context, partial(self._maker.batch, note)))

    def request_ended(self, trace: RequestTrace, token: Token) -> None:
        """See `Sink`."""
        begun = token.kept
        if not isinstance(begun, _Begun):
            raise TypeError("bug: another sink's token")
        batches = trace.batches
        if len(batches) > 1:
            batches = sorted(batches, key=_began)[:MOST_BATCHES]
        offset_ns = day_offset_ns()
        status, events = UNSET, NO_EVENTS
        if trace.status >= SERVER_ERROR:
            errors = [trace.error] if trace.error else []
            status, events = _told(errors, ns_of(trace.ended, offset_ns))
        add_end(begun.attributes, trace)
        note = RequestNote(
            name_of(trace),  # the route may not have been known before
            begun.context,
            begun.parent,
            begun.attributes,
            trace.began,
            trace.received,
            trace.decoded,
            trace.answered,
            trace.encoded,
            trace.ended,
            offset_ns,
            # Not the records: the frames of their errors hold tensors.
            [
                Forward(
                    self._batch(record),
                    record.replica,
                    record.items,
                    record.began,
                    record.ended or trace.ended,
                    record.fault is not None,
                )
                for record in batches
            ],
            bool(trace.is_accepted and trace.decoded and not batches and trace.outcome != "ok"),
            status,
            events,
        )
        self._send(LateSpan(begun.context, partial(self._maker.request, note)))

    def _send(self, span: LateSpan) -> None:
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


def _told(errors: Sequence[BaseException], at_ns: int) -> tuple[Status, list[Event]]:
    """What a span says of errors; none: that is all that is known."""
    description = text_of(errors[0]) if errors else None
    return Status(StatusCode.ERROR, description), [error_event(each, at_ns) for each in errors]


def _began(record: BatchRecord) -> float:
    return record.began
