"""A connection behind a circuit breaker: given up when it fails, made again after a pause.

Closed, there is a link to use. Once it has failed too often the breaker opens: there is none, and
requests go without it. After a pause, which grows, a new connection is made and
must answer a probe in time (half-open); so no request is the one that tries.
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
IN_A_ROW = 5  # failures that open it
WEIGHT = 0.05  # of the newest result in the share of failures
MOST_SHARE = 0.5  # of failures
CONNECT_S = 1.0  # for a connection, its login and its probes
PROBES = 3  # of which one must be in time: the first finds cold caches
LOOK_S = 0.5  # between two looks at a connection; an idle one is probed then
HURRY_S = 0.05  # the same after a failure, and at first: to know the round trip
FIRST_LOOKS = 8
STALLED_S = 1.0  # an answer that takes longer never comes
FIRST_PAUSE_S, MOST_PAUSE_S = 0.25, 5.0
STEADY_S = 10.0  # closed for so long, the next pause is the first one again

Connect = Callable[[Callable[[str], None]], Coroutine[Any, Any, Link]]


@dataclass(frozen=True, slots=True)
class Probe:
    """A command that shows whether the server can be used.

    Attributes:
        command: what is sent.
        kind: of its answer.
        limit_s: in which it must be answered.
        took: told what it took.
    """

    command: tuple[str | bytes, ...]
    kind: type
    limit_s: float
    took: Callable[[float], None]


class Breaker:
    """See the module. Owned by the event loop.

    Args:
        use: what the connection is for, for the log.
        shown: the server, for the log.
        connect: makes a connection; see `Address.connect`.
        probe: for each new connection, and for one that is idle.

    Attributes:
        link: to be used; None: the breaker is open.
        used: whether the link has been used since the last look.
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
        self._told: bool | None = None  # what the log has heard last: whether it is there
        self._opened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and stay connected; called on the event loop."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Disconnect for good."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._drop()

    def succeeded(self) -> None:
        """The link has answered in time."""
        self._failures = 0
        self._share -= WEIGHT * self._share

    def failed(self, why: str) -> None:
        """It has not, or with an error: too often, and the breaker opens."""
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
            except Exception:  # a bug: the next connection may do better
                LOG.exception("shared_cache_failed")
                self._open("a bug")
            else:
                if not self._opened.is_set():  # by the end of the link, right after its last answer
                    await self._watch(link)
            await asyncio.sleep(self._pause_s * random.uniform(0.75, 1.25))  # nosec B311 # spreads them
            self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)

    async def _prove(self, link: Link) -> None:
        """Probe a new connection.

        Raises:
            TimeoutError: no answer was in time.
            LinkError: the server refuses.
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
            raise LinkError("an answer to something else")
        took_s = time.monotonic() - began
        self._probe.took(took_s)
        return took_s <= self._probe.limit_s

    async def _watch(self, link: Link) -> None:
        """Let a link be used until the breaker opens."""
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
        """Notice an answer that never comes, and probe a link that is not used."""
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
    """What the system says, in which there is nothing of the URL."""
    if isinstance(error, OSError) and error.strerror and error.errno is not None:
        return error.strerror
    return type(error).__name__
