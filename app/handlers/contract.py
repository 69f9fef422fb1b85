"""What the API and the processes of handlers know of each other.

    caller --> HandlerRequest --> HandlerPool --> process of the handler
                                  HandlerJob  <--  answer
                                  Plane.call  <--  calls of models

Everything here belongs to the event loop of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# Statuses, as in torchlane.handlers.api, of which the image has no types when it compiles this.
FIRST_ERROR, NO_CONTENT = 400, 204
FAILED = "the handler failed; the server's log has the reason, with this request's id"


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """What is needed to run one version of a handler.

    Attributes:
        name: of the handler; its place in URLs, like a model's.
        version: of the handler.
        folder: verified copies of its files, in a private temporary folder (mode 0700).
        entry: module and class, such as "shop:Shop".
        python: the interpreter, usually `sys.executable`.
        models: the models that it may call.
        max_batch_size: the most requests for one `predict_batch`; 1: the handler has `predict`.
        processes: how many processes to run.
        concurrency: requests that run at once in a process; a batch counts as one.
        seconds: the longest time that one request may run.
        memory_bytes: limit for the resident memory of one process with its children.
        queue_limit: the most requests that may wait for a process.
        streams: whether `predict` yields its answer.
        user: that its processes run as; None: the server's.
    """

    name: str
    version: int
    folder: Path
    entry: str
    python: str
    models: tuple[str, ...]
    max_batch_size: int
    processes: int
    concurrency: int
    seconds: float
    memory_bytes: int
    queue_limit: int
    streams: bool = False
    user: str | None = None


@dataclass(frozen=True, slots=True)
class HandlerRequest:
    """A caller's request.

    Attributes:
        media_type: the Content-Type with its parameters; empty if there is none.
        accept: the Accept header; empty if there is none.
        body: as it came, but inflated.
        request_id: of the request, in logs and answers.
        traceparent: W3C Trace Context for what the handler sends to others; empty if there is none.
        query: the parameters of the URL, each with its values.
        deadline: on `time.monotonic`; after it the caller no longer wants an answer.
        caller: whose rights and rate limits its calls have; only requests of one share a batch.
        is_item: whether it is an item of a batch, whose answers become one document.
        on_item: gets each item of a stream, on the event loop; None: a stream is one answer.
        depth: how many handlers called each other to get here.
        tensors: whether the body is an .npz file with the inputs that the handler declares, and the
            answer, or each item of it, must be one with its outputs.
        context: opaque here; `Plane.call` gets it with the calls that belong to this request.
    """

    media_type: str
    accept: str
    body: bytes
    request_id: str
    traceparent: str
    query: Mapping[str, Sequence[str]]
    deadline: float
    caller: str = ""
    is_item: bool = False
    on_item: Callable[[bytes], None] | None = None
    depth: int = 0
    tensors: bool = False
    context: object = None


@dataclass(frozen=True, slots=True)
class HandlerAnswer:
    """A handler's answer, as it chose it.

    Attributes:
        status: from 200 to 599.
        media_type: the Content-Type.
        body: of the answer.
    """

    status: int
    media_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A handler's call of a model: the body of a native prediction.

    Attributes:
        model: its name; the handler may name any, so it is checked against `HandlerSpec.models`.
        version: None: the one that `/models/NAME/predict` has.
        many: whether it is a batch prediction.
        media_type: of the body; empty: recognised by the body's first bytes.
        accept: what the handler can read.
        body: as a client would send it.
        is_enveloped: whether it is `{"input":`, a value and `}`: a handler gets only the value.
    """

    model: str
    version: int | None
    many: bool
    media_type: str
    accept: str
    body: bytes
    is_enveloped: bool = False


@dataclass(frozen=True, slots=True)
class CallReply:
    """The answer to a `ModelCall`.

    Attributes:
        status: below 400 if the call succeeded.
        media_type: of the body.
        body: of the native prediction; empty if the call failed.
        output: the name of the output in the body, if the body has a single array.
        code: of the error; empty if there is none.
        error: the error as a sentence.
        retry_after_ms: when to try again; None if the error does not say so.
    """

    status: int
    media_type: str = ""
    body: bytes = b""
    output: str = ""
    code: str = ""
    error: str = ""
    retry_after_ms: float | None = None


class Plane(Protocol):
    """The data plane, as handlers see it."""

    def call(
        self, request: HandlerRequest | None, call: ModelCall, reply: Callable[[CallReply], None]
    ) -> Callable[[], None]:
        """Begin a call; `reply` gets its answer, once, on the event loop.

        `reply` may be called before this returns. It raises nothing.

        Args:
            request: that the call belongs to; None for a call of `setup`.
            call: what to call.
            reply: gets the answer, unless the call is cancelled.

        Returns:
            A function that cancels the call; harmless once it is answered.
        """


class HandlerMetrics(Protocol):
    """Counts what a pool does."""

    def ended(self, code: str, queue_s: float, run_s: float) -> None:
        """A request has ended.

        Args:
            code: "ok", or the code of the error.
            queue_s: seconds that it waited for a process.
            run_s: seconds in the process; 0 if it did not get there.
        """

    def restarted(self, cause: str) -> None:
        """A process ended without being told to.

        Args:
            cause: "died", "memory", "stuck" (a request did not end in time), "frames" (it sent
                what is not of the protocol) or "start" (it did not become ready).
        """

    def dropped_output(self, lines: int) -> None:
        """Lines of standard output or error were not logged, because there were too many."""


class HandlerJob(Protocol):
    """A request that a pool has accepted; its caller uses it like a `Submission` of the engine.

    Attributes:
        is_settled: whether `result` can be called.
    """

    is_settled: bool

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call `call` on the event loop when it is settled; it must not be settled yet."""

    def taken(self) -> None:
        """The oldest item of a stream has gone to its reader: another one may come."""

    def abandon(self) -> None:
        """End the wait because the caller has left: `result` raises `Abandoned`.

        The handler's code is cancelled. If it does not end within 2 s, its process is killed.
        """

    def fail(self, error: Exception) -> None:
        """End the wait: `result` raises this error. Harmless if the wait has ended."""

    def result(self) -> HandlerAnswer:
        """The answer; the job must be settled.

        Raises:
            HandlerFailed, HandlerDied, HandlerMemory, HandlerTimeout: see their classes.
            TorchlaneError: of a model that the handler called, if its code did not catch it.
            DeadlineExceeded, ShuttingDown, Abandoned: if there was no answer in time.
            Exception: the argument of `fail`.
        """


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """What a pool does at a moment.

    Attributes:
        queued: requests that wait for a process.
        running: requests in processes.
        processes: processes that are ready.
        memory_bytes: resident memory of all its processes.
    """

    queued: int
    running: int
    processes: int
    memory_bytes: int


class HandlerPool(Protocol):
    """The processes of one version of a handler; `app.handlers.pool.ProcessPool` implements it.

    `ProcessPool(spec, plane, metrics)` makes one: a `HandlerSpec`, a `Plane` and `HandlerMetrics`.

    Attributes:
        queue_limit: the most requests that may wait for a process; may be changed.
    """

    queue_limit: int

    async def start(self) -> None:
        """Start the processes; returns when every one is ready.

        Raises:
            HandlerFailed: with the reason, such as the last line of an import error.
        """

    def submit(self, requests: Sequence[HandlerRequest]) -> list[HandlerJob]:
        """Accept requests that came together, with one deadline; all of them, or none.

        While the pool drains it still accepts those of other handlers, whose own requests it may
        have accepted before (`HandlerRequest.depth`).

        Raises:
            Overloaded: the queue is full, or the deadline cannot be met.
            DeadlineExceeded: the deadline has passed.
            ModelNotReady: no process works.
            PayloadTooLarge: there are more than it ever takes, or a body is too large.
            ShuttingDown: the pool is draining.
        """

    def works(self) -> bool:
        """Whether it can answer requests."""

    def problem(self) -> str | None:
        """Why it does not work, as a sentence; None if it does."""

    def load(self) -> PoolLoad:
        """What it does now."""

    async def drain(self, budget_s: float) -> None:
        """Accept no more requests, and wait for the open ones; the rest gets `ShuttingDown`."""

    async def close(self) -> None:
        """End the processes, with all that they started; open requests get `ShuttingDown`."""
