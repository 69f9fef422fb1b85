"""Open-loop load: requests are sent when due, regardless of earlier ones."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from loadtests.errors import LoadTestError
from loadtests.openloop.address import ServerAddress, Unreachable, words_of
from loadtests.openloop.connection import Connection, Response
from models.tensors import Array

TICK_S = 0.001  # the resolution of uvloop's timers; a shorter sleep would spin
LONGEST_IDLE_S = 2.0  # below uvicorn's keep-alive of 5 s, to never send on a closing connection
MAX_ANSWER_BYTES = 512 * 1024 * 1024  # of one trial, after which they are judged
NO_ANSWER = "no answer in time"
NOT_OPENED = "no connection"


class TrialTooLarge(LoadTestError):
    """A trial does not fit into memory; the message gives the fix."""


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """The limits of a trial.

    Attributes:
        connections: most at once; a request without a free one waits, and is counted.
        patience_s: longest wait for an answer, from the arrival of its request.
    """

    connections: int = 512
    patience_s: float = 2.0


@dataclass(slots=True)
class RequestLog:
    """The fate of the requests, one entry each; times are seconds from the schedule's start.

    Attributes:
        due_s: intended arrivals, shape (n,).
        noticed_s: when the generator processed it; NaN if it never did. The difference to `due_s`
            is the generator's own lag.
        done_s: when the answer was complete or the request was abandoned.
        responses: the answers; None for missing ones.
        faults: the reasons for missing answers, by request.
        starved: requests that found all allowed connections in use.
        connections: number of opened ones.
        cpu_s: processor time of this process up to the last arrival.
        span_s: wall time of the same.
        connect_error: the last error of opening a connection; None if all were accepted.
    """

    due_s: Array
    noticed_s: Array
    done_s: Array
    responses: list[Response | None]
    faults: dict[int, str] = field(default_factory=dict)
    starved: int = 0
    connections: int = 0
    cpu_s: float = 0.0
    span_s: float = 0.0
    connect_error: str | None = None


async def send(
    address: ServerAddress,
    due_s: Array,
    requests: Sequence[bytes],
    limits: TrialLimits,
) -> RequestLog:
    """Send each request when due, on a free or new connection; wait for the answers.

    Args:
        address: of the server.
        due_s: ascending arrival times, seconds from the start, shape (n,).
        requests: n complete HTTP/1.1 requests.
        limits: of connections and patience.

    Raises:
        Unreachable: if no connection could be opened.
        TrialTooLarge: if the answers need too much memory.
    """
    generator = _Generator(address, due_s, requests, limits)
    gc.disable()  # a collection with millions of answers would stall the generator
    try:
        generator.begin()
        await generator.finished
    finally:
        gc.enable()
        generator.end()
    log = generator.log
    if log.connect_error is not None and not any(log.responses):
        raise Unreachable(
            f"cannot connect to {address.peer}: {log.connect_error}; is the server running?"
        )
    return log


class _Generator:
    """The requests of one trial and their connections."""

    def __init__(
        self, address: ServerAddress, due_s: Array, requests: Sequence[bytes], limits: TrialLimits
    ) -> None:
        n = len(due_s)
        self._loop = asyncio.get_running_loop()
        self._address, self._limits = address, limits
        self._requests = requests
        # lists: accessing single elements of an array costs several times as much
        self._due: list[float] = due_s.tolist()
        self._noticed_s = [float("nan")] * n
        self._done_s = [float("nan")] * n
        self._next = 0
        self._open = n  # unfinished requests
        self._waiting: deque[int] = deque()
        self._idle: list[Connection] = []
        self._connections: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._answer_bytes = 0
        self._start = self._cpu_start = 0.0
        self.log = RequestLog(due_s, np.empty(0), np.empty(0), [None] * n)
        self.finished: asyncio.Future[None] = self._loop.create_future()

    def begin(self) -> None:
        self._start = time.perf_counter()
        self._cpu_start = time.process_time()
        self._tick()

    def end(self) -> None:
        """Abandon unanswered requests and record the times."""
        now = time.perf_counter() - self._start
        for index in range(self._next):
            if self._done_s[index] != self._done_s[index]:  # NaN: unfinished
                self._done_s[index] = now
                self.log.faults.setdefault(index, NO_ANSWER)
        for task in self._opening:
            task.cancel()
        for connection in list(self._connections):
            connection.abort()
        self.log.noticed_s = np.array(self._noticed_s)
        self.log.done_s = np.array(self._done_s)

    def _tick(self) -> None:
        """Process every due request, and sleep until the next one is due."""
        if self.finished.done():
            return
        now = time.perf_counter() - self._start
        due, at = self._due, self._next
        while at < len(due) and due[at] <= now:
            self._noticed_s[at] = now
            self._offer(at)
            at += 1
            now = time.perf_counter() - self._start
        self._next = at
        if at < len(due):
            self._loop.call_later(max(due[at] - now, TICK_S), self._tick)
            return
        self.log.span_s = now
        self.log.cpu_s = time.process_time() - self._cpu_start
        last = due[-1] if due else 0.0
        self._loop.call_later(max(last + self._limits.patience_s - now, 0.0), self._give_up)
        self._finish_if_done()

    def _offer(self, index: int) -> None:
        """Send a request, or let it wait for a connection."""
        oldest_s = time.perf_counter() - LONGEST_IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since_s > oldest_s:
                connection.send(index, self._requests[index])
                return
            connection.abort()
        self._waiting.append(index)
        if not self._open_one():
            self.log.starved += 1

    def _open_one(self) -> bool:
        """Open one more connection if allowed."""
        if len(self._connections) + len(self._opening) >= self._limits.connections:
            return False
        task = self._loop.create_task(self._connect())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return True

    async def _connect(self) -> None:
        try:
            await self._loop.create_connection(
                lambda: Connection(self), self._address.ip or self._address.host, self._address.port
            )
        except OSError as error:
            self.log.connect_error = words_of(error)
            if self._waiting:
                self.fail(self._waiting.popleft(), f"{NOT_OPENED}: {words_of(error)}")

    def handle_open(self, connection: Connection) -> None:
        self.log.connections += 1
        self._connections.add(connection)
        self._free(connection)

    def handle_loss(self, connection: Connection) -> None:
        """Drop a lost connection; waiting requests may need a replacement."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if len(self._waiting) > len(self._opening) and not self.finished.done():
            self._open_one()

    def handle_answer(self, connection: Connection, index: int, response: Response) -> None:
        self._done_s[index] = time.perf_counter() - self._start
        self.log.responses[index] = response
        self._answer_bytes += len(response.body)
        if self._answer_bytes > MAX_ANSWER_BYTES and not self.finished.done():
            self.finished.set_exception(
                TrialTooLarge(
                    f"the answers of a trial need more than {MAX_ANSWER_BYTES >> 20} MiB; lower "
                    "--max-rate (or --rate, --seconds)"
                )
            )
        self._finish_one()
        if response.closes:
            connection.abort()
        else:
            self._free(connection)

    def fail(self, index: int, fault: str) -> None:
        self._done_s[index] = time.perf_counter() - self._start
        self.log.faults[index] = fault
        self._finish_one()

    def _free(self, connection: Connection) -> None:
        if self._waiting:
            index = self._waiting.popleft()
            connection.send(index, self._requests[index])
        else:
            connection.idle_since_s = time.perf_counter()
            self._idle.append(connection)

    def _finish_one(self) -> None:
        self._open -= 1
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not self._open:
            self._give_up()

    def _give_up(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)
