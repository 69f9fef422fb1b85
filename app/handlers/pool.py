"""The processes of one version of a handler: which request goes where, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from app.errors import (
    Abandoned,
    DeadlineExceeded,
    HandlerFailed,
    HandlerTimeout,
    ModelNotReady,
    Overloaded,
    ShuttingDown,
    TorchlaneError,
)
from app.handlers.admission import Admission, Situation
from app.handlers.calls import not_named
from app.handlers.contract import (
    CallReply,
    HandlerJob,
    HandlerMetrics,
    HandlerRequest,
    HandlerSpec,
    ModelCall,
    Plane,
    PoolLoad,
)
from app.handlers.failures import FailureLog
from app.handlers.job import Job, Run
from app.handlers.keeper import Keeper
from app.handlers.process import HandlerProcess
from models.timing import nothing

READY_S = 300.0  # for import and `setup`
SLOW_S = 5.0  # in all, for the reader of a stream that others could have the place of


class ProcessPool:
    """Implements `HandlerPool`.

    Args:
        spec: of the handler.
        plane: answers its calls.
        metrics: counts what happens.
        ready_s: seconds that a process may take until it is ready.

    Attributes:
        queue_limit: see `HandlerPool`.
    """

    def __init__(
        self, spec: HandlerSpec, plane: Plane, metrics: HandlerMetrics, ready_s: float = READY_S
    ) -> None:
        self.queue_limit = spec.queue_limit
        self._spec = spec
        self._plane = plane
        self._metrics = metrics
        self._keeper = Keeper(spec, self, metrics, ready_s)
        self._queue: dict[Job, None] = {}  # in order
        self._running: dict[Job, HandlerProcess] = {}
        self._admission = Admission(spec)
        self._is_closing = False
        self._is_draining = False
        self._gives_way = False  # whether a place will be free at once
        self._wakes = False  # whether batches will be formed at the end of this turn
        self._emptied: asyncio.Event = asyncio.Event()
        self._failures = FailureLog(spec.name, spec.version)

    # See `HandlerPool`

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self._keeper.start()
        except (HandlerFailed, asyncio.CancelledError):
            await self.close()
            raise

    def submit(self, requests: Sequence[HandlerRequest]) -> list[HandlerJob]:
        now = time.monotonic()
        self._give_way(now)
        try:
            self._admit(requests, now)
        except TorchlaneError as error:
            for _ in requests:
                self._metrics.ended(error.code, 0.0, 0.0)
            raise
        jobs = [Job(each, self, now) for each in requests]
        for job in jobs:
            self._queue[job] = None
        if self._spec.max_batch_size == 1:
            self._dispatch()
        else:  # a batch is formed at the end of this turn, when more requests may have come
            self._wake()
        for job in jobs:
            if job.timer is None and not job.is_settled:
                left_s = job.request.deadline - now
                job.timer = self._loop.call_later(left_s, partial(self._late, job))
        return [*jobs]

    def works(self) -> bool:
        return self._keeper.problem is None and not self._is_closing

    def problem(self) -> str | None:
        return "the handler is closed" if self._is_closing else self._keeper.problem

    def load(self) -> PoolLoad:
        ready = [each for each in self._keeper.processes if each.is_ready]
        memory = sum(each.child.memory_bytes for each in self._keeper.processes)
        return PoolLoad(len(self._queue), len(self._running), len(ready), memory)

    async def drain(self, budget_s: float) -> None:
        self._is_draining = True
        try:
            await asyncio.wait_for(self._until_empty(), budget_s)
        except TimeoutError:
            self._fail_open()

    async def close(self) -> None:
        self._is_draining = self._is_closing = True
        self._fail_open()
        await self._keeper.close()

    # Admission

    def _admit(self, requests: Sequence[HandlerRequest], now: float) -> None:
        spec, first = self._spec, requests[0]
        if self._is_closing or (self._is_draining and not first.depth):
            raise ShuttingDown(f"the handler {spec.name} is being stopped")
        if (problem := self._keeper.problem) is not None:
            raise ModelNotReady(f"the handler {spec.name} does not work: {problem}")
        oldest = next(iter(self._running), None)
        self._admission.check(
            requests,
            now,
            Situation(
                queued=len(self._queue),
                queue_limit=self.queue_limit,
                room=self._keeper.room,
                places=self._keeper.places,
                since=None if self._gives_way or oldest is None else oldest.started,
            ),
        )

    def _give_way(self, now: float) -> None:
        """End the stream with the slowest reader, if no place is free for another request."""
        self._gives_way = False
        if not self._spec.streams or self._keeper.room > 0 or self._is_draining:
            return
        slowest = max(self._running, key=lambda job: job.slow_s(now), default=None)
        if slowest is not None and (slow_s := slowest.slow_s(now)) > SLOW_S:
            self._gives_way = True
            slowest.fail(
                Overloaded(
                    f"the stream gave way to other requests: the handler {self._spec.name} waited "
                    f"{slow_s:.1f} s for its items to be read",
                    self._admission.answer_s,
                )
            )

    def _wake(self) -> None:
        """Look at the queue at the end of this turn."""
        if not self._wakes:
            self._wakes = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._wakes = False
        while self._queue and (process := self._keeper.free()) is not None:
            self._run(process, time.monotonic())

    def _run(self, process: HandlerProcess, now: float) -> None:
        jobs = self._next()
        for job in jobs:
            del self._queue[job]
            self._running[job] = process
            if job.timer is not None:
                job.timer.cancel()
            left_s = min(job.request.deadline - now, self._spec.seconds)
            job.timer = self._loop.call_later(left_s, partial(self._late, job))
        process.run(jobs, now)

    def _next(self) -> list[Job]:
        """The jobs to run together: the oldest, and further ones of its caller."""
        oldest = next(iter(self._queue))
        if self._spec.max_batch_size == 1:
            return [oldest]
        caller = oldest.request.caller
        jobs = (job for job in self._queue if job.request.caller == caller)
        return [*islice(jobs, self._spec.max_batch_size)]

    def _late(self, job: Job) -> None:
        if job not in self._running:
            job.fail(DeadlineExceeded("the deadline has passed; allow more time or send less"))
            return
        now, did = time.monotonic(), "did not answer"
        since = job.started
        if job.moved_at:  # each item of a stream has the same time, while its reader waits
            most_s = min(job.request.deadline - job.began, self._spec.seconds)
            left_s = most_s if job.ahead else job.moved_at + most_s - now
            if left_s > 0:
                job.timer = self._loop.call_later(left_s, partial(self._late, job))
                return
            since, did = job.moved_at, "gave no further item"
        job.fail(HandlerTimeout(f"the handler {self._spec.name} {did} in {now - since:.3f} s"))

    # What jobs and processes tell

    def settled(self, job: Job) -> None:
        now = time.monotonic()
        if job in self._queue:
            del self._queue[job]
            queue_s, run_s = now - job.began, 0.0
        else:
            process = self._running.pop(job, None)
            if process is not None and job.run is not None:
                process.left(job)
            queue_s, run_s = job.started - job.began, now - job.started
        error = job.error
        if job.first_at or (run_s and not isinstance(error, Abandoned)):
            answer_s = (job.first_at or now) - job.started
            self._admission.answered(answer_s)
        code = error.code if isinstance(error, TorchlaneError) else "internal"
        self._metrics.ended("ok" if error is None else code, queue_s, run_s)
        if not self._queue and not self._running:
            self._emptied.set()

    def taken(self, job: Job) -> None:
        process = self._running.get(job)
        if process is not None:
            process.taken(job)

    def call(
        self, job: Job | None, call: ModelCall, reply: Callable[[CallReply], None]
    ) -> Callable[[], None]:
        if call.model not in self._spec.models:
            reply(not_named(self._spec, call.model))
            return nothing
        request = None if job is None else job.request
        if job is not None and job.moved_at:  # each item of a stream has the request's time
            left_s = job.request.deadline - job.began
            request = replace(job.request, deadline=time.monotonic() + left_s)
        return self._plane.call(request, call, reply)

    def ready(self, process: HandlerProcess) -> None:
        self._keeper.ready(process)
        self._wake()

    def resumed(self) -> None:
        self._wake()

    def free(self, process: HandlerProcess, run: Run) -> None:
        self._admission.ran(time.monotonic() - run.started)
        if self._queue:
            self._dispatch()

    def failed(self, job: Job, meta: Mapping[str, Any]) -> None:
        self._failures.log(job.request.request_id, meta)

    def ended(self, process: HandlerProcess, cause: str, reason: str) -> None:
        self._keeper.ended(process, cause, reason)

    def look(self, now: float) -> None:
        if self._queue:
            self._give_way(now)

    def dropped_output(self, lines: int) -> None:
        self._metrics.dropped_output(lines)

    # The end

    async def _until_empty(self) -> None:
        while self._queue or self._running:
            self._emptied.clear()
            await self._emptied.wait()

    def _fail_open(self) -> None:
        for job in [*self._queue, *self._running]:
            job.fail(ShuttingDown(f"the handler {self._spec.name} is being stopped"))
