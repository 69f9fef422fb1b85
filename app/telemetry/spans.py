"""Spans of OpenTelemetry for the requests that its sampler chooses.

A request is a span with children for decode, queue, forward and encode. A batch is a span in a
trace of its own, with links to the spans of all its sampled requests; the forward of each request
links back. The ids of a request's span are chosen at its head, so that batches can link to it; the
spans are created from `RequestTrace` and `BatchRecord` on export (`app.telemetry.late`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, TextMapPropagator
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, Sampler, TraceIdRatioBased
from opentelemetry.trace import (
    SpanContext,
    SpanKind,
    TraceFlags,
    format_span_id,
    format_trace_id,
    get_current_span,
)
from opentelemetry.trace.span import TraceState

from app.telemetry.attributes import (
    MOST_OF_HOST,
    Attributes,
    error_type_of,
    name_of,
    of_head,
)
from app.telemetry.gate import SamplingGate
from app.telemetry.late import LateSpan
from app.telemetry.making import FLAGS, IDS, Head, SpanMaker, end_of
from app.telemetry.tracing import MOST_CHARACTERS, BatchRecord, RequestTrace, Token

NO_PARENT = Context()
LOW_BITS = 64  # of a trace id, which the ratio sampler checks
MOST_ERRORS = 8  # per batch


class _Fields(Getter[Mapping[bytes, bytes]]):
    """Reads headers for a propagator."""

    def get(self, carrier: Mapping[bytes, bytes], key: str) -> list[str] | None:
        value = carrier.get(key.lower().encode())
        return None if value is None else [value.decode("latin-1")]

    def keys(self, carrier: Mapping[bytes, bytes]) -> list[str]:
        return [name.decode("latin-1") for name in carrier]


_FIELDS = _Fields()


@dataclass(frozen=True, slots=True)
class Sampling:
    """How requests are sampled.

    Attributes:
        sampler: decides.
        propagator: reads the caller's headers.
        ratio: the share of traces that the sampler chooses by their ids; None if it decides
            otherwise.
        follows_parent: whether it skips requests whose parent is not sampled.
    """

    sampler: Sampler
    propagator: TextMapPropagator
    ratio: float | None
    follows_parent: bool


class Spans:
    """A sink that creates spans.

    Args:
        processors: receive late spans.
        sampling: how requests are sampled.
        maker: creates the spans.

    Attributes:
        may_want: the gate of this sink.
    """

    def __init__(
        self, processors: Sequence[SpanProcessor], sampling: Sampling, maker: SpanMaker
    ) -> None:
        self._processors = processors
        self._sampler = sampling.sampler
        self._propagator = sampling.propagator
        self._parent_fields = [field.encode() for field in sampling.propagator.fields]
        ratio = sampling.ratio
        self._bound = None if ratio is None else TraceIdRatioBased.get_bound_for_rate(ratio)
        if self._bound == 0:
            ratio = 0.0  # too small for the sampler to choose any trace
        gate = SamplingGate(self._parent_fields, ratio, leaves_out=sampling.follows_parent)
        self.may_want = gate.may_want
        self._maker = maker

    def wants(self, trace: RequestTrace, fields: Mapping[bytes, bytes]) -> Token | None:
        """See `Sink`."""
        for field in self._parent_fields:
            if field in fields:
                return self._asked(trace, fields)
        if self._bound is None:
            return self._asked(trace, fields)
        return _token(_id_below(self._bound), fields)

    def _asked(self, trace: RequestTrace, fields: Mapping[bytes, bytes]) -> Token | None:
        """Like `wants`, for a request about which the sampler decides."""
        context = self._propagator.extract(fields, NO_PARENT, _FIELDS)
        found = get_current_span(context).get_span_context()
        trace_id, flags, parent = IDS.generate_trace_id(), FLAGS, None
        if found.is_valid:
            trace_id, parent = found.trace_id, found
            random_id = found.trace_flags & TraceFlags.RANDOM_TRACE_ID
            flags = TraceFlags(TraceFlags.SAMPLED | random_id)
        attributes = of_head(trace, fields.get(b"host", b""), fields.get(b"user-agent"))
        result = self._sampler.should_sample(
            context, trace_id, name_of(trace), SpanKind.SERVER, attributes
        )
        if result.decision is not Decision.RECORD_AND_SAMPLE:
            return None
        added = {key: each for key, each in result.attributes.items() if key not in attributes}
        return _token(trace_id, fields, flags, result.trace_state, parent, added or None)

    def batch_ended(self, record: BatchRecord) -> None:
        """See `Sink`."""
        heads = []
        for trace in record.traces:
            token = trace.token(self)
            if token is not None and isinstance(token.kept, Head):
                heads.append(token.kept)
        if not heads:
            return
        errors = record.errors[:MOST_ERRORS]
        end = end_of(record.ended, errors, type(errors[0]).__qualname__ if errors else "")
        self._send(partial(self._maker.batch, record, heads, end))

    def request_ended(self, trace: RequestTrace, token: Token) -> None:
        """See `Sink`."""
        head = token.kept
        if not isinstance(head, Head):
            raise TypeError("bug: another sink's token")
        errors = [trace.error] if trace.error else []
        end = end_of(trace.ended, errors, error_type_of(trace))
        self._send(partial(self._maker.request, trace, head, end))

    def _send(self, make: Callable[[], list[ReadableSpan]]) -> None:
        late = LateSpan(make)
        for processor in self._processors:
            processor.on_end(late)


def _token(
    trace_id: int,
    fields: Mapping[bytes, bytes],
    flags: TraceFlags = FLAGS,
    state: TraceState | None = None,
    parent: SpanContext | None = None,
    added: Attributes | None = None,
) -> Token:
    """The token of a sampled request."""
    host, agent = fields.get(b"host", b"")[:MOST_OF_HOST], fields.get(b"user-agent")
    if agent is not None:
        agent = agent[:MOST_CHARACTERS]
    span_id = IDS.generate_span_id()
    head = Head(trace_id, span_id, flags, state, parent, host, agent, added)
    return Token(head, format_trace_id(trace_id), format_span_id(span_id))


def _id_below(bound: int) -> int:
    """A random id of a trace that the ratio sampler chooses."""
    high = IDS.generate_trace_id() >> LOW_BITS << LOW_BITS
    return (high | random.randrange(bound)) or 1  # nosec B311
