"""One process of a handler: its connection, its requests and calls, its end."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from typing import Any, Protocol

import structlog

from app.errors import HandlerDied, HandlerMemory
from app.handlers.calls import Caller, Calls
from app.handlers.child import REAP_S, Child
from app.handlers.connection import Connection
from app.handlers.contract import HandlerAnswer, HandlerSpec
from app.handlers.failures import error_of, text_of
from app.handlers.job import Job, Run
from torchlane.handlers.api import NO_CONTENT, WITHOUT_BODY
from torchlane.handlers.frames import (
    ANSWER,
    CALL,
    CANCEL,
    DROP,
    HELD,
    ITEM,
    READY,
    REPLY,
    REQUEST,
    STOP,
    TAKEN,
    Frame,
    MalformedFrame,
    next_number,
)

LOG = structlog.get_logger(__name__)
GRACE_S = 2.0  # for cancelled code
EXIT_S = 0.2  # from the end of the connection to that of the process
FIRST_STATUS, LAST_STATUS = 200, 599
END_OF_STREAM = HandlerAnswer(200, "", b"")


class Pool(Caller, Protocol):
    """The owner of processes."""

    def ready(self, process: HandlerProcess) -> None:
        """A process can take requests."""

    def resumed(self) -> None:
        """A process reads again, and may take requests."""

    def free(self, process: HandlerProcess, run: Run) -> None:
        """A run has ended, and with it the use of a place."""

    def failed(self, job: Job, meta: Mapping[str, Any]) -> None:
        """The code of a handler failed on a request."""

    def ended(self, process: HandlerProcess, cause: str, reason: str) -> None:
        """A process has ended; its jobs are settled. Cause: see `HandlerMetrics.restarted`."""

    def dropped_output(self, lines: int) -> None:
        """See `HandlerMetrics`."""

    def look(self, now: float) -> None:
        """Do what is due; called every quarter of a second."""


class HandlerProcess:
    """A process from its start to its end.

    Args:
        spec: of the handler.
        index: of the process, for the log.
        pool: is told what happens.
        measuring: runs what reads its memory.

    Attributes:
        index: see above.
        is_ready: whether it can take requests.
        runs: what it runs.
        child: the process itself.
    """

    def __init__(self, spec: HandlerSpec, index: int, pool: Pool, measuring: Executor) -> None:
        self.index = index
        self.is_ready = False
        self.runs: set[Run] = set()
        self._spec = spec
        self._pool = pool
        labels: dict[str, object] = {
            "handler": spec.name,
            "version": spec.version,
            "process": index,
        }
        self.child = Child(spec, labels, self, measuring)
        self._loop = asyncio.get_running_loop()
        self._connection = Connection(self)
        self._number = 0
        self._of: dict[int, Run] = {}  # by number of the request
        self._held: set[Run] = set()  # cancelled, but the process says that their code runs on
        self._calls = Calls(pool, self._send_reply)
        self._cause = ""  # why it ends
        self._reason = ""
        self.has_ended = self._loop.create_future()

    async def start(self) -> None:
        """Start the process; `Pool.ready` or `Pool.ended` follows."""
        if self._cause:  # it was stopped before this task began
            self._finish()
            return
        try:
            end = self.child.start()
        except OSError as error:
            self._cause, self._reason = "start", f"cannot start {self._spec.python}: {error}"
            self._finish()
            return
        await self._loop.create_unix_connection(lambda: self._connection, sock=end)

    # For the pool

    @property
    def can_run(self) -> bool:
        """Whether it takes another run now."""
        return (
            self.is_ready
            and not self._cause
            and self._connection.is_open
            and len(self.runs) < self._spec.concurrency
            and not self._connection.is_full
            and not self.is_condemned
        )

    @property
    def is_condemned(self) -> bool:
        """Whether code that was cancelled runs on: it gets no more requests until that ends."""
        return any(run.grace is None for run in self._held)

    def run(self, jobs: Iterable[Job], now: float) -> None:
        """Send requests, which take one place."""
        run = Run(now)
        waiting = [*jobs]
        for index, job in enumerate(waiting):
            number = next_number(self._number)
            while number in self._of:
                number = next_number(number)
            self._number = number
            self._of[number] = run
            run.jobs[number] = job
            job.run, job.started = run, now
            request = job.request
            meta: dict[str, object] = {
                "media_type": request.media_type,
                "accept": request.accept,
                "request_id": request.request_id,
                "timeout_ms": max(0.0, min(request.deadline - now, self._spec.seconds) * 1000),
                "traceparent": request.traceparent,
            }
            if request.query:
                meta["query"] = {name: list(each) for name, each in request.query.items()}
            if request.is_item:
                meta["item"] = True
            if request.tensors:
                meta["tensors"] = True
            if request.on_item is not None:
                meta["stream"] = True
            if index < len(waiting) - 1:
                meta["more"] = True
            self._connection.send(REQUEST, number, meta, request.body)
        run.live = len(waiting)
        self.runs.add(run)

    def taken(self, job: Job) -> None:
        """Let a stream go on."""
        if job.run is not None:
            self._tell(TAKEN, job, job.run)

    def left(self, job: Job) -> None:
        """Cancel the code of a job that was settled before its answer came."""
        run = job.run
        if run is None or run not in self.runs:
            return
        run.live -= 1
        self._tell(CANCEL, job, run)
        self._is_left(run)
        self._kill_condemned()

    def _tell(self, kind: int, job: Job, run: Run) -> None:
        """Send a frame that is about the request of a job."""
        for number, each in run.jobs.items():
            if each is job:
                self._connection.send(kind, number)

    def look(self) -> None:
        """Check that the process lives, and its memory; called every quarter of a second."""
        if not self.child.is_running:
            return
        if self.child.has_exited:
            self._kill()
        else:
            self.child.measure()

    def end(self, cause: str, reason: str) -> None:
        """End the process, with all that it started; harmless if it ends."""
        if not self._cause:
            self._cause, self._reason = cause, reason
        self._kill()

    async def stop(self, within_s: float) -> None:
        """Tell the process to end, and kill it if it does not."""
        if not self._cause:
            self._cause = "stopped"
            if self.is_ready:
                self._connection.send(STOP, 0)
        if self.is_ready:
            await asyncio.wait([self.has_ended], timeout=within_s)
        self._kill()
        await asyncio.wait([self.has_ended], timeout=within_s + EXIT_S)

    # What its connection tells

    @property
    def takes_frames(self) -> bool:
        return self._cause in ("", "stopped")

    @property
    def is_behind(self) -> bool:
        return self._calls.are_many

    def resumed(self) -> None:
        self._pool.resumed()

    def lost(self) -> None:
        """See `connection.Owner`: the process has ended, or is of no use any more."""
        if self.child.has_exited:
            self._kill()
        else:
            self._loop.call_later(EXIT_S, self._kill)
            self._loop.call_later(REAP_S, self.look)

    def _send_reply(self, number: int, meta: object, body: bytes) -> None:
        self._connection.send(REPLY, number, meta, body)
        self._connection.pace()

    def received(self, frame: Frame) -> None:
        kind = frame.kind
        if kind == ANSWER:
            self._answered(frame)
        elif kind == CALL:
            of = frame.meta.get("of")
            run = self._of.get(of) if isinstance(of, int) else None
            self._calls.begin(frame, run)
            if self._calls.are_many:
                self._connection.pace()
        elif kind == ITEM:
            run = self._of.get(frame.number)
            if run is None:
                raise MalformedFrame(f"an item of the unknown request {frame.number}")
            job = run.jobs[frame.number]
            if not job.is_settled:
                job.item(frame.body, time.monotonic())
        elif kind == DROP:
            self._calls.drop(frame.number)
        elif kind == READY:
            self._is_set_up(frame)
        elif kind == HELD:
            run = self._of.get(frame.number)
            if run is not None and not run.live:
                self._held.add(run)

    def _is_set_up(self, frame: Frame) -> None:
        if self.is_ready:
            raise MalformedFrame("that it is ready, twice")
        reason = text_of(frame.meta, "error")
        if reason:
            self.end("start", reason)
            return
        if (frame.meta.get("streams") is True) != self._spec.streams:
            now, then = ("returns", "yielded") if self._spec.streams else ("yields", "returned")
            self.end("start", f"its predict {now} the answer, at export it {then} it: export it")
            return
        self.is_ready = True
        self._pool.ready(self)

    def _answered(self, frame: Frame) -> None:
        meta = frame.meta
        if frame.number not in self._of:
            raise MalformedFrame(f"an answer to the unknown request {frame.number}")
        answer = None if "code" in meta else _answer(meta, frame.body)
        run = self._of[frame.number]
        job = run.jobs[frame.number]
        if answer is not None and job.request.on_item is not None and answer != END_OF_STREAM:
            raise MalformedFrame("an answer that is not the end of a stream")
        del self._of[frame.number], run.jobs[frame.number]
        if not run.jobs:
            self.runs.discard(run)
            self._held.discard(run)
            if run.grace is not None:
                run.grace.cancel()
        if not job.is_settled:
            run.live -= 1
            job.run = None
            if answer is None:
                self._pool.failed(job, meta)
                job.fail(error_of(meta))
            else:
                job.answer(answer)
        if not run.jobs:
            self._pool.free(self, run)
        else:
            self._is_left(run)
        self._kill_condemned()

    # Its end

    def _is_left(self, run: Run) -> None:
        """Give the code a moment to return if nobody waits for it any more."""
        if run.live == 0 and run.grace is None:
            run.grace = self._loop.call_later(GRACE_S, self._give_up, run)
            # Not only when the process drops them: it may not be read before some have ended.
            self._calls.drop_all_of(run)

    def _give_up(self, run: Run) -> None:
        run.grace = None
        if run not in self.runs:
            return
        if run not in self._held:
            self.end("stuck", f"its code did not return within {GRACE_S:.0f} s of a cancellation")
        self._kill_condemned()

    def _kill_condemned(self) -> None:
        if self.is_condemned and not any(run.live for run in self.runs):
            self.end("stuck", f"its code ran on {GRACE_S:.0f} s after it was cancelled")

    def exceeded(self, memory_bytes: int) -> None:
        limit = self._spec.memory_bytes
        self.end("memory", f"it took {memory_bytes} bytes of memory, the limit is {limit}")

    def exited(self, code: int) -> None:
        self._reason = self._reason or _ended_by(code)
        self._finish()

    def dropped_output(self, lines: int) -> None:
        self._pool.dropped_output(lines)

    def _kill(self) -> None:
        if not self.child.is_running:
            return
        if not self._cause:
            self._cause = "died" if self.is_ready else "start"
            if not self.child.has_exited:
                self._reason = "it closed its connection"
        self.child.kill()

    def _finish(self) -> None:
        if self.has_ended.done():
            return
        self.is_ready = False
        self._connection.abort()
        self.child.close_outputs()
        self._calls.cancel_all()
        self.has_ended.set_result(None)
        jobs = [job for run in self.runs for job in run.jobs.values()]
        for run in self.runs:
            if run.grace is not None:
                run.grace.cancel()
        self.runs.clear()
        self._held.clear()
        self._of.clear()
        kind = HandlerMemory if self._cause == "memory" else HandlerDied
        for job in jobs:
            job.run = None
            job.fail(kind(f"the handler's process ended: {self._reason}"))
        self._pool.ended(self, self._cause, self._reason)


def _answer(meta: Mapping[str, Any], body: bytes) -> HandlerAnswer:
    status, media_type = meta.get("status"), text_of(meta, "media_type")
    if not isinstance(status, int) or not FIRST_STATUS <= status <= LAST_STATUS:
        raise MalformedFrame(f"an answer with the status {str(status)[:40]}")
    if status in WITHOUT_BODY and (body or status != NO_CONTENT):
        raise MalformedFrame(f"an answer with the status {status}, which has no body")
    if not media_type.isprintable() or not media_type.isascii():
        raise MalformedFrame("an answer with a media type that no header can have")
    return HandlerAnswer(status, media_type, body)


def _ended_by(code: int) -> str:
    if code >= 0:
        return f"it exited with code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"it was ended by signal {-code}"
