"""A connection behind a circuit breaker, which drops it after failures and reconnects later.

While the breaker is closed, there is a link to use. After too many failures the breaker opens:
there is no link, and requests continue without it. After a pause, which grows, a new connection
must answer a probe in time (half-open), so no request has to test it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from app.shared_cache.link import Link, LinkError

LOG = structlog.get_logger(__name__)
IN_A_ROW = 5  # consecutive failures that open the breaker
WEIGHT = 0.05  # of the newest result in the share of failures
MOST_SHARE = 0.5  # maximum share of failures
CONNECT_S = 1.0  # for a connection, its login and its probes
PROBES = 3  # one of them must be in time: the first one meets cold caches
LOOK_S = 0.5  # between two checks of a connection, which probe it if it is idle
HURRY_S = 0.05  # the same after a failure, and at first to measure the round trip
FIRST_LOOKS = 8
STALLED_S = 1.0  # an answer that takes longer is considered lost
FIRST_PAUSE_S, MOST_PAUSE_S = 0.25, 5.0
STEADY_S = 10.0  # after being closed for this long, the breaker resets the pause

Connect = Callable[[Callable[[str], None]], Coroutine[Any, Any, Link]]


@dataclass(frozen=True, slots=True)
class Probe:
    """A command that shows whether the server can be used.

    Attributes:
        command: the command to send.
        kind: type of its answer.
        limit_s: time limit for its answer.
        took: receives the time that it took.
    """

    command: tuple[str | bytes, ...]
    kind: type
    limit_s: float
    took: Callable[[float], None]


class Breaker:
    """See the module. Owned by the event loop.

    Args:
        use: the connection's purpose, for the log.
        shown: the server, for the log.
        connect: creates a connection; see `Address.connect`.
        probe: for each new connection, and for an idle one.

    Attributes:
        link: the link to use; None: the breaker is open.
        used: whether the link has been used since the last check.
    """

    def __init__(self, use: str, shown: str, connect: Connect, probe: Probe) -> None:
        self.link: Link | None = None
        self.used = False
        self._use, self._shown = use, shown
        self._connect = connect
        self._probe = probe
        self._failures = 0
        self._share = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._told: bool | None = None  # whether the connection is available, as last logged
        self._opened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and stay connected; called on the event loop."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Disconnect permanently."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._drop()

    def succeeded(self) -> None:
        """Record that the link has answered in time."""
        self._failures = 0
        self._share -= WEIGHT * self._share

    def failed(self, why: str) -> None:
        """Record a late answer or an error; open the breaker after too many."""
        self._failures += 1
        self._share += WEIGHT * (1 - self._share)
        if self._failures >= IN_A_ROW or self._share > MOST_SHARE:
            self._open(why)

    def _open(self, why: str) -> None:
        self._drop()
        self._opened.set()
        if self._told is not False:
            self._told = False
            pause_s = round(self._pause_s, 2)
            LOG.warning(
                "shared_cache_open", use=self._use, server=self._shown, problem=why, again_s=pause_s
            )

    def _drop(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            link.close()

    async def _run(self) -> None:
        while True:
            self._opened.clear()
            try:
                async with asyncio.timeout(CONNECT_S):
                    link = await self._connect(self._open)
                    try:
                        await self._prove(link)
                    except BaseException:
                        link.close()
                        raise
            except TimeoutError:
                self._open("it does not answer in time")
            except (OSError, ValueError, LinkError) as error:
                known = isinstance(error, LinkError)
                self._open(str(error) if known else _reason(error))
            except Exception:  # a bug, but the next connection may work
                LOG.exception("shared_cache_failed")
                self._open("a bug")
            else:
                if not self._opened.is_set():  # set if the link ended right after its last answer
                    await self._watch(link)
            await asyncio.sleep(self._pause_s * random.uniform(0.75, 1.25))  # nosec B311 # spreads them
            self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)

    async def _prove(self, link: Link) -> None:
        """Probe a new connection.

        Raises:
            TimeoutError: if no answer was in time.
            LinkError: if the server answers with an error.
        """
        for _ in range(PROBES):
            if await self._probed(link):
                return
        raise TimeoutError

    async def _probed(self, link: Link) -> bool:
        """Whether a probe is answered in time."""
        began = time.monotonic()
        answer = await link.ask(*self._probe.command)
        if not isinstance(answer, self._probe.kind):
            raise LinkError("an answer of the wrong type")
        took_s = time.monotonic() - began
        self._probe.took(took_s)
        return took_s <= self._probe.limit_s

    async def _watch(self, link: Link) -> None:
        """Offer a link for use until the breaker opens."""
        self.link, closed_at, looks = link, time.monotonic(), 0
        self._failures, self._share = 0, 0.0
        if self._told is not True:
            self._told = True
            LOG.info("shared_cache_closed", use=self._use, server=self._shown)
        while not self._opened.is_set():
            try:
                hurries = self._failures > 0 or looks < FIRST_LOOKS
                async with asyncio.timeout(HURRY_S if hurries else LOOK_S):
                    await self._opened.wait()
            except TimeoutError:
                looks += 1
                await self._look(link)
        if time.monotonic() - closed_at > STEADY_S:
            self._pause_s = FIRST_PAUSE_S

    async def _look(self, link: Link) -> None:
        """Detect an answer that never arrives, and probe an idle link."""
        if link.sent_at is not None:
            if time.monotonic() - link.sent_at > STALLED_S:
                self._open("it does not answer")
            return
        if self.used and not self._failures:
            self.used = False
            return
        try:
            async with asyncio.timeout(self._probe.limit_s):
                in_time = await self._probed(link)
        except TimeoutError:
            in_time = False
        except LinkError as error:
            self.failed(str(error))
            return
        if in_time:
            self.succeeded()
        else:
            self.failed("it does not answer in time")


def _reason(error: Exception) -> str:
    """The system's error message, which quotes nothing of the URL."""
    if isinstance(error, OSError) and error.strerror and error.errno is not None:
        return error.strerror
    return type(error).__name__
