"""Reports the times of requests and batches to sinks; without a sink nothing is recorded.

Times are seconds of `time.perf_counter`. Owned by the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import structlog

from app.types import CacheCounts, ModelId, Serving

LOG = structlog.get_logger(__name__)

MOST_CHARACTERS = 1000  # of texts from clients and of errors
CLIENT_GONE = 499  # nothing was sent
UNPLANNED = Serving(())  # no form is known

Gate: TypeAlias = Callable[[Mapping[bytes, bytes]], bool]


class Token:
    """A sink's handle on a request.

    Args:
        kept: the sink's own data for the end of the request.
        trace_id: the trace id for log lines and exemplars, in hexadecimal; empty if they have none.
        span_id: the id of the request's span in that trace.
    """

    __slots__ = ("kept", "span_id", "trace_id")

    def __init__(self, kept: object = None, trace_id: str = "", span_id: str = "") -> None:
        self.kept = kept
        self.trace_id = trace_id
        self.span_id = span_id


class BatchRecord:
    """A batch from its hand-over to its end.

    Attributes:
        items: number of items.
        length: the length to which they are padded; 0 if they are not.
        handed_over: when its replica got it.
        began: when its replica could compute it; 0 if the previous batch may still run.
        ended: when the event loop was notified of its end; 0 if it runs.
        compute_s: seconds in the backend.
        forwards: runs of the model; more than one means that the batch was split.
        fault: the class of its replica's error, after which items move to another replica, or fail;
            empty if there was none.
        errors: this error, and the model's about single items; kept until sinks have been notified.
        trace_id: the trace id of one of its requests; empty if they have none.
        traces: traces of the requests that wait for its items, or did when it was handed over.
        serving: names the form that ran it.
        kept: data of the sink that creates spans.
    """

    __slots__ = (
        "began",
        "compute_s",
        "device",
        "ended",
        "errors",
        "fault",
        "forwards",
        "handed_over",
        "items",
        "kept",
        "length",
        "model",
        "replica",
        "serving",
        "trace_id",
        "traces",
    )

    def __init__(self, model: ModelId, replica: str, device: str, items: int, length: int) -> None:
        self.model = model
        self.replica = replica
        self.device = device
        self.items = items
        self.length = length
        self.handed_over = time.perf_counter()
        self.began = self.ended = 0.0
        self.compute_s = 0.0
        self.forwards = 0
        self.fault = ""
        self.errors: Sequence[Exception] = ()
        self.trace_id = ""
        self.traces: list[RequestTrace] = []
        self.serving = UNPLANNED
        self.kept: object = None

    def add(self, traces: Sequence[RequestTrace]) -> None:
        """Add the traces of requests that wait for its items; some may have been added before."""
        for trace in traces:
            if self not in trace.batches:
                trace.batches.append(self)
                self.traces.append(trace)
                self.trace_id = self.trace_id or trace.trace_id


class Run(NamedTuple):
    """The state of a batch when a request ended, which may be before the end of the batch.

    Attributes:
        record: the record of the batch.
        began: when its replica could compute it.
        ended: the end of the batch or of the request, whichever was first.
        fault: see `BatchRecord`.
    """

    record: BatchRecord
    began: float
    ended: float
    fault: str


class RequestTrace:
    """A request from its head to the last byte of its answer; times of skipped steps are 0.

    A request that is not followed may get a record at its end, without these times.

    Args:
        method: the HTTP method; empty for a gRPC call.
        path: the requested path, up to MOST_CHARACTERS.
        route: the matching route; empty if unknown yet, or if there is none.
        request_id: the request id in the answer and the log.
        began: when its head had arrived.

    Attributes:
        received: when its body was complete.
        decoded: when its items were known.
        answered: when its outcomes were known.
        encoded: when its answer was encoded.
        ended: when it ended.
        name, version: the model and version that it asks for; empty if it names none.
        model: its model; None if unknown.
        items: number of items.
        cache: how they were found; None if unknown.
        is_repeat: whether its answer was remembered as a whole.
        queue_s: the most seconds that any item was queued.
        batch_items: size of the largest batch with its items; 0 if none was computed.
        bytes_in, bytes_out: size of its body, as far as it was read, and of its answer's.
        batches: batches with its items, including joined ones; empty if all were cached.
        runs: the batches that began before the request ended, in that order.
        left_queued: whether items were still queued when it ended.
        status: the status of the answer, 499 if the client had disconnected.
        rpc_status: the gRPC status, by name.
        outcome: 'ok', or the code of the error.
        error: the error that is the answer, if any.
        tokens: tokens of the sinks that follow it.
        trace_id: see `Token`; from the first sink that has one.
    """

    __slots__ = (
        "answered",
        "batch_items",
        "batches",
        "began",
        "bytes_in",
        "bytes_out",
        "cache",
        "decoded",
        "encoded",
        "ended",
        "error",
        "is_repeat",
        "items",
        "left_queued",
        "method",
        "model",
        "name",
        "outcome",
        "path",
        "queue_s",
        "received",
        "request_id",
        "route",
        "rpc_status",
        "runs",
        "span_id",
        "status",
        "tokens",
        "trace_id",
        "version",
    )

    def __init__(self, method: str, path: str, route: str, request_id: bytes, began: float) -> None:
        self.method = method
        self.path = path[:MOST_CHARACTERS]
        self.route = route
        self.request_id = request_id
        self.began = began
        self.received = self.decoded = self.answered = self.encoded = self.ended = 0.0
        self.name = self.version = ""
        self.model: ModelId | None = None
        self.left_queued = False
        self.is_repeat = False
        self.queue_s = 0.0
        self.items = self.batch_items = self.bytes_in = self.bytes_out = 0
        self.cache: CacheCounts | None = None
        self.batches: list[BatchRecord] = []
        self.runs: list[Run] = []
        self.status = 0
        self.rpc_status = "OK"
        self.outcome = ""
        self.error: BaseException | None = None
        self.tokens: list[tuple[Sink, Token]] = []
        self.trace_id = ""
        self.span_id = ""

    def token(self, sink: Sink) -> Token | None:
        """The token of a sink; None if the sink does not follow the request."""
        for each, token in self.tokens:
            if each is sink:
                return token
        return None

    def end(self, moment: float, status: int, outcome: str) -> None:
        """Record the end of the request, and the state of its batches at that moment."""
        self.ended, self.status, self.outcome = moment, status, outcome
        if status == CLIENT_GONE:
            self.bytes_out, self.rpc_status = 0, "CANCELLED"
        for each in self.batches:
            if each.began:
                self.runs.append(Run(each, each.began, each.ended or moment, each.fault))
            else:
                self.left_queued = True
        if len(self.runs) > 1:
            self.runs.sort(key=_began)

    def log_ids(self) -> dict[str, str]:
        """The ids of its trace for log lines."""
        if not self.trace_id:
            return {}
        return {"trace_id": self.trace_id, "span_id": self.span_id}


class Sink(Protocol):
    """Follows requests and batches. Its methods must be fast; a sink that raises is removed."""

    def wants(self, trace: RequestTrace, fields: Mapping[bytes, bytes]) -> Token | None:
        """A token to follow a request that begins, with these headers; None to ignore it."""

    def batch_ended(self, record: BatchRecord) -> None:
        """Receive a batch, followed or not, before its requests have their outcomes."""

    def request_ended(self, trace: RequestTrace, token: Token) -> None:
        """Receive a request that the sink follows."""


class Tracing:
    """Notifies sinks of requests and batches; there is one per process.

    Attributes:
        enabled: whether there is a sink; read once for each request and each batch.
        wants_batches: whether any sink has no gate, and thus receives every batch.
        followed: number of open requests that sinks follow.
    """

    __slots__ = ("_asked", "_gated", "enabled", "followed", "wants_batches")

    def __init__(self) -> None:
        self.enabled = self.wants_batches = False
        self.followed = 0
        self._gated: list[tuple[Sink, Gate | None]] = []
        self._asked: list[Sink] = []  # about the request that begins

    def add(self, sink: Sink, gate: Gate | None = None) -> None:
        """Add a sink.

        With a gate, which is called with a request's headers, `wants` is called only right after
        the gate has returned True, and the sink gets no batch while no request is followed: other
        requests then cost almost nothing.
        """
        self._gated.append((sink, gate))
        self._count()

    def remove(self, sink: Sink) -> None:
        """Remove a sink; harmless if it was not added."""
        self._gated = [each for each in self._gated if each[0] is not sink]
        self._count()

    def _count(self) -> None:
        self.enabled = bool(self._gated)
        self.wants_batches = any(gate is None for _, gate in self._gated)

    def may_follow(
        self, headers: Sequence[tuple[bytes, bytes]], fields: Mapping[bytes, bytes]
    ) -> bool:
        """Whether any sink may follow a request; `begin` is called next, if one may.

        Args:
            headers: all headers, with names in lower case.
            fields: the last header of each name.
        """
        if len(fields) != len(headers):
            fields = _joined(headers)
        may = False
        for sink, gate in self._gated:
            try:
                if gate is not None and not gate(fields):
                    continue
            except Exception:
                self._failed(sink)
                continue
            if not may:
                self._asked = []
                may = True
            self._asked.append(sink)
        return may

    def begin(
        self,
        trace: RequestTrace,
        headers: Sequence[tuple[bytes, bytes]],
        fields: Mapping[bytes, bytes],
    ) -> RequestTrace | None:
        """The trace of a request, if any sink follows it; headers as in `may_follow`."""
        if len(fields) != len(headers):
            fields = _joined(headers)
        for sink in self._asked:
            try:
                token = sink.wants(trace, fields)
            except Exception:
                self._failed(sink)
                continue
            if token is not None:
                trace.tokens.append((sink, token))
                if not trace.trace_id:
                    trace.trace_id, trace.span_id = token.trace_id, token.span_id
        if not trace.tokens:
            return None
        self.followed += 1
        return trace

    def end(self, trace: RequestTrace, status: int, outcome: str) -> None:
        """Record the end of a request, and notify the sinks that follow it, if any does."""
        if trace.tokens:
            self.followed -= 1
        trace.end(time.perf_counter(), status, outcome)
        for sink, token in trace.tokens:
            if sink in [each for each, _ in self._gated]:
                try:
                    sink.request_ended(trace, token)
                except Exception:
                    self._failed(sink)
        trace.error = None  # its frames hold the request

    def batch_ended(self, record: BatchRecord) -> None:
        """Notify sinks of the end of a batch, before its outcomes are settled."""
        record.ended = time.perf_counter()
        for sink, _ in self._gated:
            try:
                sink.batch_ended(record)
            except Exception:  # the batch's requests must still get their outcomes
                self._failed(sink)
        record.traces = []  # they hold the record
        record.errors = ()  # their frames hold tensors

    def _failed(self, sink: Sink) -> None:
        """Remove a sink that has a bug, which would affect the next requests, too."""
        LOG.exception("sink_failed", sink=type(sink).__name__)
        self.remove(sink)


def _began(run: Run) -> float:
    return run.began


def _joined(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; headers with the same name become one list (RFC 9110, section 5.3)."""
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        before = fields.get(name)
        fields[name] = value if before is None else before + b"," + value
    return fields
