"""A connection behind a circuit breaker, which drops it after failures and reconnects later.

While the breaker is closed, there is a link to use. After too many failures the breaker opens:
there is no link, and requests continue without it. After a pause, which grows, a new connection
must answer a probe in time (half-open), so no request has to test it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import structlog
from redis.backoff import EqualJitterBackoff

from app.shared_cache.link import Link, LinkError

LOG = structlog.get_logger(__name__)
MOST_SHARE = 0.5  # maximum share of failures, a moving average
WEIGHT = 0.13  # of the newest result: five failures after successes are just above MOST_SHARE
CONNECT_S = 1.0  # for a connection and its login
LOOK_S = 0.5  # between two probes of a connection, and for the answer of one in use
HURRY_S = 0.05  # until the next probe after one that failed
FIRST_PAUSE_S, MOST_PAUSE_S = 0.25, 5.0
MOST_DOUBLINGS = 10  # redis-py raises 2 to this power
STEADY_S = 10.0  # a connection that lasted for this long resets the pause
LATE = "it does not answer in time"

Connect: TypeAlias = Callable[[Callable[[str], None]], Coroutine[Any, Any, Link]]


class Breaker:
    """See the module. Owned by the event loop.

    Args:
        use: the connection's purpose, for the log.
        shown: the server, for the log.
        connect: creates a connection; see `Address.connect`.
        probe: sends a command that shows whether a link can be used; raises LinkError if not.
        limit_s: time limit for the probe of a connection that is not in use yet.

    Attributes:
        link: the link to use; None: the breaker is open.
    """

    def __init__(
        self,
        use: str,
        shown: str,
        connect: Connect,
        probe: Callable[[Link], Coroutine[Any, Any, None]],
        limit_s: float,
    ) -> None:
        self.link: Link | None = None
        self._log = LOG.bind(use=use, server=shown)
        self._connect = connect
        self._probe = probe
        self._limit_s = limit_s
        self._share = 0.0
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
        self._share -= WEIGHT * self._share

    def failed(self, why: str) -> None:
        """Record a late answer or an error; open the breaker after too many."""
        self._share += WEIGHT * (1 - self._share)
        if self._share > MOST_SHARE:
            self._open(why)

    def _open(self, why: str) -> None:
        self._drop()
        self._opened.set()
        if self._told is not False:
            self._told = False
            self._log.warning("shared_cache_open", problem=why)

    def _drop(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            link.close()

    async def _run(self) -> None:
        pauses, failures = EqualJitterBackoff(MOST_PAUSE_S, FIRST_PAUSE_S), 0
        while True:
            began = time.monotonic()
            self._opened.clear()
            try:
                async with asyncio.timeout(CONNECT_S):
                    link = await self._connect(self._open)
                with contextlib.closing(link):
                    await self._watch(link)
            except (OSError, ValueError, LinkError) as error:
                self._open(_reason(error))
            except Exception:  # a bug, but the next connection may work
                LOG.exception("shared_cache_failed")
                self._open("a bug")
            is_steady = time.monotonic() - began > STEADY_S
            failures = 0 if is_steady else min(failures + 1, MOST_DOUBLINGS)
            await asyncio.sleep(pauses.compute(failures))

    async def _watch(self, link: Link) -> None:
        """Probe a link until the breaker opens; offer it for use once it answers in time.

        Once it is in use, requests measure its answers, and a busy event loop reads a probe's late:
        the probe only finds that a link is dead.
        """
        self._share = 0.0
        while not self._opened.is_set():
            pause_s = HURRY_S
            try:
                async with asyncio.timeout(self._limit_s if self.link is None else LOOK_S):
                    await self._probe(link)
            except TimeoutError:
                self.failed(LATE)
            except LinkError as error:
                self.failed(str(error))
            else:
                pause_s = LOOK_S
                self.succeeded()
                self._offer(link)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._opened.wait()

    def _offer(self, link: Link) -> None:
        if self._opened.is_set():  # if the link ended right after its last answer
            return
        self.link = link
        if self._told is not True:
            self._told = True
            self._log.info("shared_cache_closed")


def _reason(error: Exception) -> str:
    """The server's or the system's error message, which quotes nothing of the URL."""
    if isinstance(error, LinkError):
        return str(error)
    if isinstance(error, TimeoutError):
        return LATE
    if isinstance(error, OSError) and error.strerror and error.errno is not None:
        return error.strerror
    return type(error).__name__
