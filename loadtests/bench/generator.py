"""Closed-loop load: each connection sends its next request when it has its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from loadtests.wire import Response, ResponseParser, WireError

PATIENCE_S = 30.0  # for answers that are still out when the time is up


class LoadError(Exception):
    """The load could not be carried through; the message says what happened."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How to load a server.

    Attributes:
        warm_up_s: loaded before the clock starts.
        seconds: measured.
    """

    connections: int
    warm_up_s: float
    seconds: float


@dataclass(slots=True)
class Run:
    """What came of it.

    Attributes:
        seconds: that were measured.
        latencies_s: of the answers that came within them, from the write of a request to the last
            byte of its answer.
        answered: all answers, those outside of the measured time too; as many as were sent.
        not_200: how many of them had another status.
        first_not_200: the first of these.
    """

    seconds: float
    latencies_s: list[float] = field(default_factory=list)
    answered: int = 0
    not_200: int = 0
    first_not_200: Response | None = None

    @property
    def requests_per_s(self) -> float:
        """Answers per second of the measured time."""
        return len(self.latencies_s) / self.seconds


async def load(port: int, next_request: Callable[[], bytes], plan: LoadPlan) -> Run:
    """Load the server on 127.0.0.1 and count.

    Args:
        port: where it listens.
        next_request: gives a whole HTTP/1.1 request, a new one at each call.
        plan: how hard and how long.

    Raises:
        LoadError: if a connection breaks, or answers stay out.
    """
    loop = asyncio.get_running_loop()
    driver = _Driver(next_request, plan)
    transports: list[asyncio.Transport] = []
    try:
        async with asyncio.timeout(plan.warm_up_s + plan.seconds + PATIENCE_S):
            for _ in range(plan.connections):
                connect = loop.create_connection(lambda: _Connection(driver), "127.0.0.1", port)
                transports.append((await connect)[0])
            return await driver.finished
    except TimeoutError as error:
        raise LoadError(
            f"the server still owed answers {PATIENCE_S:g} s after the time was up"
        ) from error
    except OSError as error:
        raise LoadError(f"cannot connect to port {port}: {error}") from error
    finally:
        driver.finished.cancel()  # unless it has come to a result
        for transport in transports:
            transport.abort()


class _Driver:
    """What the connections of one run share."""

    def __init__(self, next_request: Callable[[], bytes], plan: LoadPlan) -> None:
        self.next_request = next_request
        self.finished: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._run = Run(plan.seconds)
        self._measure_from = time.perf_counter() + plan.warm_up_s
        self._measure_until = self._measure_from + plan.seconds
        self._busy = plan.connections

    def answered(self, response: Response, sent_at: float) -> bool:
        """Count an answer; whether to go on."""
        now = time.perf_counter()
        run = self._run
        run.answered += 1
        if response.status != 200:
            run.not_200 += 1
            run.first_not_200 = run.first_not_200 or response
        if now < self._measure_until:
            if now >= self._measure_from:
                run.latencies_s.append(now - sent_at)
            return True
        self._busy -= 1
        if not self._busy and not self.finished.done():
            self.finished.set_result(run)
        return False

    def broke(self, reason: str) -> None:
        """A connection cannot go on."""
        if not self.finished.done():
            self.finished.set_exception(LoadError(reason))


class _Connection(asyncio.Protocol):
    def __init__(self, driver: _Driver) -> None:
        self._driver = driver
        self._parser = ResponseParser()
        self._transport: asyncio.Transport | None = None
        self._waiting = False
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type
        self._send(self._transport)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        try:
            response = self._parser.feed(data)
        except WireError as error:
            self._driver.broke(f"the server's answer cannot be read: {error}")
            transport.abort()
            return
        if response is None:
            return
        if self._driver.answered(response, self._sent_at):
            self._send(transport)
        else:
            self._waiting = False
            transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting:
            self._driver.broke(
                f"the server closed a connection that waited for its answer: {error}"
            )

    def _send(self, transport: asyncio.Transport) -> None:
        request = self._driver.next_request()
        self._waiting = True
        self._sent_at = time.perf_counter()
        transport.write(request)
