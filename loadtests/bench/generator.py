"""Closed-loop load by asyncio, where wrk is not installed: each connection waits for its answer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from loadtests.wire import Response, ResponseParser, WireError

PATIENCE_S = 30.0  # for answers that are still out when the time is up


class LoadError(Exception):
    """The load could not be carried through; the message says what happened."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How to load a server.

    Attributes:
        seconds: measured.
    """

    connections: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it.

    Attributes:
        seconds: that were measured.
        answered: answers that came within them.
        sent: requests, those without an answer too; at most one more for each connection.
        not_200: answers with another status.
        p50_ms: from the write of a request to the last byte of its answer.
        p99_ms: the same.
        first_not_200: the first such answer, where the generator keeps it.
    """

    seconds: float
    answered: int
    sent: int
    not_200: int
    p50_ms: float
    p99_ms: float
    first_not_200: str = ""

    @property
    def requests_per_s(self) -> float:
        """Answers per second of the measured time."""
        return self.answered / self.seconds


async def load(
    port: int, pieces: Callable[[int], Sequence[bytes]], first: int, plan: LoadPlan
) -> Run:
    """Load the server on 127.0.0.1 and count.

    Args:
        port: where it listens.
        pieces: of a whole HTTP/1.1 request, by its number.
        first: the number of the first request.
        plan: how hard and how long.

    Raises:
        LoadError: if a connection breaks, or answers stay out.
    """
    loop = asyncio.get_running_loop()
    driver = _Driver(pieces, first, plan)
    transports: list[asyncio.Transport] = []
    try:
        async with asyncio.timeout(plan.seconds + PATIENCE_S):
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


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: the smallest value that at least `percent` do not exceed."""
    rank = math.ceil(len(ascending) * percent / 100)
    return ascending[max(0, rank - 1)]


class _Driver:
    """What the connections of one run share."""

    def __init__(
        self, pieces: Callable[[int], Sequence[bytes]], first: int, plan: LoadPlan
    ) -> None:
        self.finished: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._pieces, self._first, self._sent = pieces, first, 0
        self._seconds = plan.seconds
        self._until = time.perf_counter() + plan.seconds
        self._latencies_ms: list[float] = []
        self._not_200, self._first_not_200 = 0, ""
        self._busy = plan.connections

    def next_request(self) -> Sequence[bytes]:
        """A request of its own."""
        self._sent += 1
        return self._pieces(self._first + self._sent - 1)

    def answered(self, response: Response, sent_at: float) -> bool:
        """Count an answer; whether to go on."""
        now = time.perf_counter()
        if response.status != 200:
            self._not_200 += 1
            text = response.body[:500].decode(errors="replace")
            self._first_not_200 = self._first_not_200 or f"{response.status}: {text}"
        if now < self._until:
            self._latencies_ms.append((now - sent_at) * 1000)
            return True
        self._busy -= 1
        if not self._busy and not self.finished.done():
            self.finished.set_result(self._run())
        return False

    def broke(self, reason: str) -> None:
        """A connection cannot go on."""
        if not self.finished.done():
            self.finished.set_exception(LoadError(reason))

    def _run(self) -> Run:
        ascending = sorted(self._latencies_ms)
        return Run(
            seconds=self._seconds,
            answered=len(ascending),
            sent=self._sent,
            not_200=self._not_200,
            p50_ms=percentile(ascending, 50) if ascending else math.nan,
            p99_ms=percentile(ascending, 99) if ascending else math.nan,
            first_not_200=self._first_not_200,
        )


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
        transport.writelines(request)  # no copy: a large one is not joined
