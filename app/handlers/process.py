"""One process of a handler: its connection, its requests and calls, its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, cast

import orjson
import structlog

from app.errors import HandlerDied, HandlerMemory
from app.handlers.calls import Caller, Calls
from app.handlers.contract import HandlerAnswer, HandlerSpec
from app.handlers.failures import error_of, text_of
from app.handlers.job import Job, Run
from app.handlers.memory import proportional_bytes, resident_bytes
from app.handlers.output import Output
from app.handlers.spawn import spawn
from torchlane.handlers.frames import (
    ANSWER,
    CALL,
    CANCEL,
    DROP,
    FROM_HANDLER,
    FROM_HANDLER_BYTES,
    HELD,
    READY,
    REPLY,
    REQUEST,
    STOP,
    Decoder,
    Frame,
    MalformedFrame,
    head,
    next_number,
)

LOG = structlog.get_logger(__name__)
GRACE_S = 2.0  # for cancelled code
EXIT_S = 0.2  # from the end of the connection to that of the process
REAP_S = 0.005  # between two looks whether a killed process has ended
MAX_UNREAD_BYTES = 256 << 20  # of replies that the process does not read
COPIED_BYTES = 64 << 10
FIRST_STATUS, LAST_STATUS = 200, 599


class Pool(Caller, Protocol):
    """Whoever has processes."""

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


class HandlerProcess(asyncio.Protocol):
    """A process from its start to its end.

    Args:
        spec: of the handler.
        index: of the process, for the log.
        pool: is told what happens.

    Attributes:
        index: see above.
        is_ready: whether it can take requests.
        runs: what it runs.
        memory_bytes: resident memory at the last look.
    """

    def __init__(self, spec: HandlerSpec, index: int, pool: Pool) -> None:
        self.index = index
        self.is_ready = False
        self.runs: set[Run] = set()
        self.memory_bytes = 0
        self._spec = spec
        self._pool = pool
        self._labels: dict[str, object] = {
            "handler": spec.name,
            "version": spec.version,
            "process": index,
        }
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder(FROM_HANDLER, FROM_HANDLER_BYTES, orjson.loads)
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._outputs: list[Output] = []
        self._number = 0
        self._of: dict[int, Run] = {}  # by number of the request
        self._held: set[Run] = set()  # cancelled, but the process says that their code runs on
        self._calls = Calls(pool, self._send_reply)
        self._is_full = False  # the process reads more slowly than the server writes
        self._cause = ""  # why it ends
        self._reason = ""
        self._measuring: asyncio.Future[int] | None = None
        self.has_ended = self._loop.create_future()

    async def start(self) -> None:
        """Start the process; `Pool.ready` or `Pool.ended` follows."""
        try:
            spawned = spawn(self._spec)
        except OSError as error:
            self._cause, self._reason = "start", f"cannot start {self._spec.python}: {error}"
            self._finish()
            return
        self._process, end = spawned.process, spawned.end
        self._outputs = [
            Output(descriptor, {**self._labels, "stream": stream}, self._pool.dropped_output)
            for descriptor, stream in ((spawned.stdout, "stdout"), (spawned.stderr, "stderr"))
        ]
        await self._connect(end)

    async def _connect(self, end: socket.socket) -> None:
        await self._loop.create_unix_connection(lambda: self, sock=end)

    # For the pool

    @property
    def pid(self) -> int:
        """Of the process; 0 if it was not started."""
        return self._process.pid if self._process else 0

    @property
    def can_run(self) -> bool:
        """Whether it takes another run now."""
        return (
            self.is_ready
            and not self._cause
            and len(self.runs) < self._spec.concurrency
            and not self._is_full
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
                "timeout_ms": max(0.0, (request.deadline - now) * 1000),
                "traceparent": request.traceparent,
            }
            if request.query:
                meta["query"] = {name: list(each) for name, each in request.query.items()}
            if index < len(waiting) - 1:
                meta["more"] = True
            self._send(REQUEST, number, meta, request.body)
        run.live = len(waiting)
        self.runs.add(run)

    def left(self, job: Job) -> None:
        """Cancel the code of a job that was settled before its answer came."""
        run = job.run
        if run is None or run not in self.runs:
            return
        run.live -= 1
        for number, each in run.jobs.items():
            if each is job:
                self._send(CANCEL, number)
        if run.live == 0:
            run.grace = self._loop.call_later(GRACE_S, self._give_up, run)
            # Not only when the process drops them: it may not be read before some have ended.
            self._calls.drop_all_of(run)
        self._kill_condemned()

    def look(self) -> None:
        """Check that the process lives, and its memory; called every quarter of a second."""
        process = self._process
        if process is None or self.has_ended.done():
            return
        if self._has_exited(process):
            self._kill()
            return
        self.memory_bytes = resident_bytes(process.pid)
        if self.memory_bytes > self._spec.memory_bytes and self._measuring is None:
            # Forks share memory; to count that once may have to wait for their page tables.
            self._measuring = self._loop.run_in_executor(None, proportional_bytes, process.pid)
            self._measuring.add_done_callback(self._measured)

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
                self._send(STOP, 0)
        if self.is_ready:
            await asyncio.wait([self.has_ended], timeout=within_s)
        self._kill()
        await asyncio.wait([self.has_ended], timeout=within_s + EXIT_S)

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._cause and self._cause != "stopped":
            return
        try:
            for frame in self._decoder.feed(data):
                self._received(frame)
        except MalformedFrame as error:
            self.end("frames", f"it sent {error}")

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_full = True
        self._pace()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_full = False
        self._pace()
        self._pool.resumed()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`."""

    def connection_lost(self, error: Exception | None) -> None:
        """The process has ended, or will be: without the connection it is of no use."""
        self._transport = None
        if self._process is None or self._has_exited(self._process):
            self._kill()
        else:
            self._loop.call_later(EXIT_S, self._kill)
            self._loop.call_later(REAP_S, self.look)

    def _send(self, kind: int, number: int, meta: object = None, body: bytes = b"") -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        start = head(kind, number, orjson.dumps(meta) if meta else b"", len(body))
        if len(body) <= COPIED_BYTES:
            transport.write(start + body)
        else:
            transport.writelines((start, body))
        if self._is_full and transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.end("stuck", "it does not read what the server sends")

    def _send_reply(self, number: int, meta: object, body: bytes) -> None:
        self._send(REPLY, number, meta, body)
        self._pace()

    def _pace(self) -> None:
        """Read on, unless the process causes more work than it takes the results of."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._is_full or self._calls.are_many:
            transport.pause_reading()
        else:
            transport.resume_reading()

    # What the process sends

    def _received(self, frame: Frame) -> None:
        kind = frame.kind
        if kind == ANSWER:
            self._answered(frame)
        elif kind == CALL:
            of = frame.meta.get("of")
            run = self._of.get(of) if isinstance(of, int) else None
            self._calls.begin(frame, run)
            if self._calls.are_many:
                self._pace()
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
        self.is_ready = True
        self._pool.ready(self)

    def _answered(self, frame: Frame) -> None:
        meta = frame.meta
        if frame.number not in self._of:
            raise MalformedFrame(f"an answer to the unknown request {frame.number}")
        answer = None if "code" in meta else _answer(meta, frame.body)
        run = self._of.pop(frame.number)
        job = run.jobs.pop(frame.number)
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
        self._kill_condemned()

    # Its end

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

    def _measured(self, measured: asyncio.Future[int]) -> None:
        self._measuring = None
        if measured.cancelled() or measured.exception() is not None:
            return
        self.memory_bytes = measured.result()
        limit = self._spec.memory_bytes
        if self.memory_bytes > limit:
            self.end("memory", f"it took {self.memory_bytes} bytes of memory, the limit is {limit}")

    @staticmethod
    def _has_exited(process: subprocess.Popen[bytes]) -> bool:
        """Whether it has; its group still has its number, because it is not reaped here."""
        try:
            return (
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            )
        except ChildProcessError:  # the kernel has reaped it, because SIGCHLD is ignored
            return True

    def _kill(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        exited = self._has_exited(process)
        if not self._cause:
            self._cause = "died" if self.is_ready else "start"
            if not exited:
                self._reason = "it closed its connection"
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        process = self._process
        if process is None or self.has_ended.done():
            return
        code = process.poll()
        if code is None:
            self._loop.call_later(REAP_S, self._reap)
            return
        self._reason = self._reason or _ended_by(code)
        self._finish()

    def _finish(self) -> None:
        if self.has_ended.done():
            return
        self.is_ready = False
        if self._transport is not None:
            self._transport.abort()
        for output in self._outputs:
            output.close()
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
    if not media_type.isprintable() or not media_type.isascii():
        raise MalformedFrame("an answer with a media type that no header can have")
    return HandlerAnswer(status, media_type, body)


def _ended_by(code: int) -> str:
    if code >= 0:
        return f"it exited with code {code}"
    return f"it was ended by {signal.Signals(-code).name}"
