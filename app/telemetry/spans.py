"""Spans of OpenTelemetry, made of the traces that its sampler chooses.

A request is a span with children for decode, queue, forward and encode. A batch is a span of a
trace of its own, with links to the spans of all its requests that are sampled; the forward of each
request links back. The requests' spans begin at once, for batches to link to; all others are made
when their times are known.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, TextMapPropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.semconv.attributes.exception_attributes import (
    EXCEPTION_MESSAGE,
    EXCEPTION_TYPE,
)
from opentelemetry.semconv.attributes.http_attributes import (
    HTTP_REQUEST_METHOD,
    HTTP_RESPONSE_STATUS_CODE,
    HTTP_ROUTE,
)
from opentelemetry.semconv.attributes.server_attributes import SERVER_ADDRESS, SERVER_PORT
from opentelemetry.semconv.attributes.url_attributes import URL_PATH, URL_SCHEME
from opentelemetry.semconv.attributes.user_agent_attributes import USER_AGENT_ORIGINAL
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TraceState,
    format_span_id,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from app.errors import TorchlaneError
from app.telemetry.tracing import BatchRecord, RequestTrace, Token
from app.types import ModelId

Attributes = dict[str, AttributeValue]
NO_PARENT = Context()
LOW_BITS = (1 << 64) - 1  # of a trace id: those that the sampler by ratio looks at
MOST_BATCHES = 32  # of one request, with spans of their own
MOST_ERRORS = 8  # of one batch
MOST_CHARACTERS = 1000  # of an error's text
# What a parent that is not sampled says: valid, of version 00, without the flag.
NOT_SAMPLED = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]")
EMBEDDINGS = "/v1/embeddings"
METHODS = frozenset(
    ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT")
)
SERVER_ERROR = 500  # and above
CLIENT_GONE = 499  # nothing was sent
# Attributes that are not declared stable yet.
RPC_SYSTEM_NAME = "rpc.system.name"
RPC_METHOD = "rpc.method"
RPC_RESPONSE_STATUS_CODE = "rpc.response.status_code"
GEN_AI_OPERATION_NAME = "gen_ai.operation.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"


class Choice(Sampler):
    """A sampler that is asked once for a span, even where that is made later.

    Args:
        sampler: decides.
        ids: makes the ids of traces.
    """

    def __init__(self, sampler: Sampler, ids: IdGenerator) -> None:
        self._sampler = sampler
        self.ids = _Ids(ids)
        self._made: SamplingResult | None = None

    def make(self, parent: Context, trace_id: int, name: str, attributes: Attributes) -> bool:
        """Decide about the span that is begun next, in this trace; False: do not begin it."""
        result = self._sampler.should_sample(parent, trace_id, name, SpanKind.SERVER, attributes)
        self._made = None if result.decision is Decision.DROP else result
        return self._made is not None

    def take(self) -> None:
        """Sample the span that is begun next."""
        self._made = SamplingResult(Decision.RECORD_AND_SAMPLE)

    def should_sample(  # noqa: PLR0917  # as the SDK calls it
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """See `Sampler`."""
        made, self._made = self._made, None
        if made is not None:
            return made
        return self._sampler.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )

    def get_description(self) -> str:
        """See `Sampler`."""
        return self._sampler.get_description()


class _Ids(IdGenerator):
    """Uses an id of a trace that was made before."""

    def __init__(self, ids: IdGenerator) -> None:
        self._ids = ids
        self.trace_id = 0

    def generate_trace_id(self) -> int:
        trace_id, self.trace_id = self.trace_id, 0
        return trace_id or self._ids.generate_trace_id()

    def generate_span_id(self) -> int:
        return self._ids.generate_span_id()

    def is_trace_id_random(self) -> bool:
        return self._ids.is_trace_id_random()


class _Fields(Getter[Mapping[bytes, bytes]]):
    """Reads headers for a propagator."""

    def get(self, carrier: Mapping[bytes, bytes], key: str) -> list[str] | None:
        value = carrier.get(key.lower().encode())
        return None if value is None else [value.decode("latin-1")]

    def keys(self, carrier: Mapping[bytes, bytes]) -> list[str]:
        return [name.decode("latin-1") for name in carrier]


_FIELDS = _Fields()


class _Begun:
    """The span of a request that is not over.

    Args:
        span: of it.
        offset_ns: from `time.perf_counter` to the time of day.
    """

    __slots__ = ("offset_ns", "span")

    def __init__(self, span: Span, offset_ns: int) -> None:
        self.span = span
        self.offset_ns = offset_ns


class _Batch:
    """The span of a batch.

    Args:
        span: of it.
        linked: how many of its requests' traces have been looked at.
    """

    __slots__ = ("linked", "span")

    def __init__(self, span: Span, linked: int) -> None:
        self.span = span
        self.linked = linked


class Spans:
    """A sink that makes spans.

    Args:
        provider: of spans; its sampler is `choice`, and its ids are those of `choice`.
        choice: of what is sampled.
        propagator: reads the caller's headers.
        ratio: the share of traces that is sampled by their ids; None: something else decides.
        follows_parent: a request whose parent is not sampled is not either.
        form_of: names the form that runs so many items of a model on a replica; empty: not known.
    """

    def __init__(
        self,
        provider: TracerProvider,
        choice: Choice,
        propagator: TextMapPropagator,
        *,
        ratio: float | None,
        follows_parent: bool,
        form_of: Callable[[ModelId, str, int], str],
    ) -> None:
        self._tracer: Tracer = provider.get_tracer("torchlane")
        self._choice = choice
        self._propagator = propagator
        self._parent_fields = [field.encode() for field in propagator.fields]
        self._bound = None if ratio is None else TraceIdRatioBased.get_bound_for_rate(ratio)
        self._leaves_out = follows_parent and "traceparent" in propagator.fields
        self._form_of = form_of

    def wants(self, trace: RequestTrace, fields: Mapping[bytes, bytes]) -> Token | None:
        """See `Sink`; most requests are not sampled, and cost next to nothing here."""
        context = NO_PARENT
        for field in self._parent_fields:
            if field in fields:
                if self._leaves_out and NOT_SAMPLED.fullmatch(fields.get(b"traceparent", b"")):
                    return None
                context = self._propagator.extract(fields, NO_PARENT, _FIELDS)
                break
        parent = get_current_span(context).get_span_context() if context else None
        if parent is not None and parent.is_valid:
            trace_id = parent.trace_id
        else:
            trace_id = self._choice.ids.generate_trace_id()
            # What the sampler would say, at a tenth of the cost.
            if self._bound is not None and trace_id & LOW_BITS >= self._bound:
                return None
            self._choice.ids.trace_id = trace_id
        name, attributes = _name(trace), _of_head(trace, fields)
        if not self._choice.make(context, trace_id, name, attributes):
            self._choice.ids.trace_id = 0
            return None
        offset_ns = time.time_ns() - time.perf_counter_ns()
        begun = _ns(trace.began, offset_ns)
        span = self._tracer.start_span(name, context, SpanKind.SERVER, attributes, start_time=begun)
        own = span.get_span_context()
        kept = _Begun(span, offset_ns)
        if not own.trace_flags.sampled:
            return Token(kept)
        return Token(kept, format_trace_id(own.trace_id), format_span_id(own.span_id))

    def batch_ended(self, record: BatchRecord) -> None:
        """See `Sink`."""
        batch = self._batch(record)
        if batch is None:
            return
        span = batch.span
        for context in self._sampled(record.traces[batch.linked :]):
            span.add_link(context)
        offset_ns = time.time_ns() - time.perf_counter_ns()
        span.set_attribute("torchlane.batch.forwards", record.forwards)
        span.set_attribute("torchlane.batch.compute_s", record.compute_s)
        if record.fault is not None:
            span.record_exception(record.fault)
        for error in record.errors[:MOST_ERRORS]:
            _add_error(span, error)
        if record.fault is not None or record.errors:
            error = record.fault or record.errors[0]
            span.set_attribute(ERROR_TYPE, type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR, str(error)[:MOST_CHARACTERS]))
        span.end(_ns(record.ended, offset_ns))

    def request_ended(self, trace: RequestTrace, token: Token) -> None:
        """See `Sink`."""
        begun = token.kept
        if not isinstance(begun, _Begun):
            raise TypeError("bug: another sink's token")
        decoded = trace.received or trace.began
        self._child(begun, "decode", decoded, trace.decoded)
        self._computing(trace, begun)
        self._child(begun, "encode", trace.answered, trace.encoded)
        span = begun.span
        span.update_name(_name(trace))  # the route may not have been known
        span.set_attributes(_of_end(trace))
        if trace.status >= SERVER_ERROR and trace.error is not None:
            span.set_status(Status(StatusCode.ERROR, str(trace.error)[:MOST_CHARACTERS]))
            if isinstance(trace.error, TorchlaneError):  # its stack would explain nothing
                _add_error(span, trace.error)
            else:
                span.record_exception(trace.error)
        span.end(_ns(trace.ended, begun.offset_ns))

    def _computing(self, trace: RequestTrace, begun: _Begun) -> None:
        """The spans from the acceptance of a request to its last outcome."""
        since = trace.decoded
        batches = sorted(trace.batches, key=_began)[:MOST_BATCHES]
        if not batches and trace.is_accepted and trace.outcome != "ok":  # it waited in vain
            self._child(begun, "queue", since, trace.ended)
        for record in batches:
            if record.began > since:
                self._child(begun, "queue", since, record.began)
            batch = self._batch(record)
            links = [] if batch is None else [Link(batch.span.get_span_context())]
            ended = record.ended or trace.ended
            began = min(max(since, record.began), ended)
            self._child(begun, "forward", began, ended, _of_batch(record), links)
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
        context = set_span_in_context(begun.span, NO_PARENT)
        start = _ns(began, begun.offset_ns)
        span = self._tracer.start_span(name, context, SpanKind.INTERNAL, attributes, links, start)
        span.end(_ns(ended, begun.offset_ns))

    def _batch(self, record: BatchRecord) -> _Batch | None:
        """The span of a batch, once the first of its requests asks for it; None: none does."""
        if isinstance(record.kept, _Batch):
            return record.kept
        contexts = self._sampled(record.traces)
        if not contexts:
            return None
        self._choice.take()
        links = [Link(context) for context in contexts]
        start = _ns(record.began, time.time_ns() - time.perf_counter_ns())
        span = self._tracer.start_span(
            "batch", NO_PARENT, SpanKind.INTERNAL, None, links, start_time=start
        )
        span.set_attributes(_of_batch(record))
        form = self._form_of(record.model, record.replica, record.items)
        if form:
            span.set_attribute("torchlane.form", form)
        record.kept = batch = _Batch(span, len(record.traces))
        return batch

    def _sampled(self, traces: Sequence[RequestTrace]) -> list[SpanContext]:
        """The spans of requests, as far as they are sampled."""
        found = []
        for trace in traces:
            token = trace.token(self)
            if token is not None and token.trace_id and isinstance(token.kept, _Begun):
                found.append(token.kept.span.get_span_context())
        return found


def _ns(moment: float, offset_ns: int) -> int:
    """A moment of `time.perf_counter` as nanoseconds since 1970."""
    return int(moment * 1e9) + offset_ns


def _began(record: BatchRecord) -> float:
    return record.began


def _name(trace: RequestTrace) -> str:
    if not trace.method:  # gRPC's names lack the first slash
        return trace.route.removeprefix("/")
    method = trace.method if trace.method in METHODS else "HTTP"
    return f"{method} {trace.route}" if trace.route else method


def _of_head(trace: RequestTrace, fields: Mapping[bytes, bytes]) -> Attributes:
    """What is known when a request begins, and a sampler may ask for."""
    found: Attributes = {"torchlane.request_id": trace.request_id.decode("latin-1")}
    if trace.method:
        known = trace.method in METHODS
        found[HTTP_REQUEST_METHOD] = trace.method if known else "_OTHER"
        found[URL_PATH] = trace.path
        found[URL_SCHEME] = "http"
    else:
        found[RPC_SYSTEM_NAME] = "grpc"
        found[RPC_METHOD] = trace.route.removeprefix("/")
    host, _, port = fields.get(b"host", b"").decode("latin-1").rpartition(":")
    if port.isdigit() and host:
        found[SERVER_ADDRESS], found[SERVER_PORT] = host, int(port)
    elif fields.get(b"host"):
        found[SERVER_ADDRESS] = fields[b"host"].decode("latin-1")
    agent = fields.get(b"user-agent")
    if agent is not None:
        found[USER_AGENT_ORIGINAL] = agent.decode("latin-1")
    return found


def _of_end(trace: RequestTrace) -> Attributes:
    found: Attributes = {}
    if not trace.method:
        gone = trace.status == CLIENT_GONE
        found[RPC_RESPONSE_STATUS_CODE] = "CANCELLED" if gone else trace.rpc_status
    elif trace.status != CLIENT_GONE:
        found[HTTP_RESPONSE_STATUS_CODE] = trace.status
    if trace.method and trace.route:
        found[HTTP_ROUTE] = trace.route
    if trace.outcome != "ok":
        found["torchlane.error.code"] = trace.outcome
        if trace.status >= SERVER_ERROR:
            found[ERROR_TYPE] = trace.outcome
    if trace.model is not None:
        found["torchlane.model"] = trace.model.name
        found["torchlane.version"] = trace.model.version
        if trace.route == EMBEDDINGS:
            found[GEN_AI_OPERATION_NAME] = "embeddings"
            found[GEN_AI_REQUEST_MODEL] = trace.model.name
    if trace.items:
        found["torchlane.items"] = trace.items
    if trace.cache is not None:
        for name, count in trace.cache._asdict().items():
            found[f"torchlane.cache.{name}"] = count
    return found


def _of_batch(record: BatchRecord) -> Attributes:
    found: Attributes = {
        "torchlane.model": record.model.name,
        "torchlane.version": record.model.version,
        "torchlane.replica": record.replica,
        "torchlane.device": record.device,
        "torchlane.batch.items": record.items,
    }
    if record.length:
        found["torchlane.batch.length"] = record.length
    return found


def _add_error(span: Span, error: BaseException) -> None:
    """An event as `Span.record_exception` adds it, without the stack."""
    text = str(error)[:MOST_CHARACTERS]
    span.add_event("exception", {EXCEPTION_TYPE: type(error).__qualname__, EXCEPTION_MESSAGE: text})
