"""The engine's second cache, in a Redis or Valkey: look-ups with a time budget, separate writes.

A request waits only for a look-up. Reads and writes use two connections, so that writes never
delay reads.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from app.engine.shared_tier import Found, NotFound, SharedTier
from app.metrics import Metrics
from app.shared_cache.address import Address
from app.shared_cache.breaker import LATE, Breaker
from app.shared_cache.envelope import WrongValue, decode, encode
from app.shared_cache.link import Link, LinkError, Replies, packed
from app.types import Arrays
from models.timing import nothing

LOG = structlog.get_logger(__name__)
PREFIX = b"torchlane:"  # of all keys, so that permissions can be granted for them
PROBE_KEY = PREFIX + b"probe"
WRONG_ANSWER = "an answer of the wrong type or length"
# Number of newest round trips; their lower quartile is used, because stalls of this process, for
# example while it loads a model, say nothing about the server.
ROUND_TRIPS = 9
WRITE_LIMIT_S = 0.5  # for a write probe, which delays no request
MOST_WAITING = 4096  # values to be written
MOST_WAITING_BYTES = 16 << 20
MOST_PIPELINES = 4  # groups of writes that wait for their answers
CLOSE_S = 0.5  # for the last writes, when the server stops
FEW_COMPLAINTS = 5  # maximum log lines about wrong values, per process


class RedisTier(SharedTier):
    """See the module and `SharedTier`. Owned by the event loop.

    Args:
        address: the server's address.
        metrics: counts look-ups and writes.
        budget_s: how long a request waits for the cache at most.
        ttl_s: how long the server keeps a value.
    """

    def __init__(
        self, address: Address, metrics: Metrics, *, budget_s: float, ttl_s: float
    ) -> None:
        self._budget_s = budget_s
        self._ttl_ms = str(max(1, round(ttl_s * 1000)))
        self._metrics = metrics.shared_cache(lambda: self.is_open)
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._round_trip_s = math.inf
        shown, connect = address.shown, address.connect
        self._reads = Breaker("read", shown, connect, self._probe_read, budget_s)
        self._writes = Breaker("write", shown, connect, _probe_write, WRITE_LIMIT_S)
        self._waiting: list[tuple[bytes, bytes]] = []
        self._waiting_bytes = 0
        self._is_flushing = False
        self._complaints = 0

    @property
    def budget_s(self) -> float:
        return self._budget_s

    @property
    def is_open(self) -> bool:
        return self._reads.link is None

    @property
    def round_trip_s(self) -> float:
        return self._round_trip_s

    def start(self) -> None:
        """Connect in the background; called on the event loop."""
        self._reads.start()
        self._writes.start()

    async def close(self) -> None:
        """Disconnect, after a short wait for the remaining writes."""
        until = time.monotonic() + CLOSE_S
        while self._writes.link is not None and time.monotonic() < until:
            if not self._waiting and not self._writes.link.unanswered:
                break
            await asyncio.sleep(0.01)
        await self._reads.close()
        await self._writes.close()
        self._drop(len(self._waiting))

    def find(
        self, keys: Sequence[bytes], answered: Callable[[Sequence[Found]], None]
    ) -> Callable[[], None]:
        """See `SharedTier`: one MGET."""
        link = self._reads.link
        if link is None:
            answered([NotFound.OPEN] * len(keys))
            return nothing
        waiting, asked_at = [answered], time.monotonic()

        def replied(replies: Replies) -> None:
            if replies is not None:
                self._took(time.monotonic() - asked_at)
            if waiting:
                waiting.pop()(self._read(keys, replies))

        def give_up() -> None:
            if waiting:
                waiting.clear()
                self._reads.failed(LATE)

        link.send(packed("MGET", *[PREFIX + key for key in keys]), 1, replied)
        return give_up

    def keep(self, key: bytes, value: Arrays) -> None:
        """See `SharedTier`: a SET, sent together with the others of this turn."""
        data = encode(key, value) if self._writes.link is not None else None
        if (
            data is None
            or len(self._waiting) >= MOST_WAITING
            or self._waiting_bytes + len(data) > MOST_WAITING_BYTES
        ):
            self._metrics.dropped.inc()
            return
        self._waiting.append((key, data))
        self._waiting_bytes += len(data)
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send the waiting values, unless too many groups of writes are unanswered."""
        self._is_flushing = False
        link = self._writes.link
        if link is None:
            self._drop(len(self._waiting))
            return
        if not self._waiting or link.unanswered >= MOST_PIPELINES:
            return
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        ttl_ms = self._ttl_ms
        commands = b"".join([packed("SET", PREFIX + k, v, "PX", ttl_ms) for k, v in waiting])
        link.send(commands, len(waiting), partial(self._written, len(waiting)))

    def _written(self, count: int, replies: Replies) -> None:
        if replies is None:  # the breaker is notified by the link
            self._metrics.failed.inc(count)
            self._drop(len(self._waiting))
            return
        errors = [each for each in replies if isinstance(each, LinkError)]
        self._metrics.failed.inc(len(errors))
        self._metrics.stored.inc(count - len(errors))
        if errors:
            self._writes.failed(str(errors[0]))
        else:
            self._writes.succeeded()
        self._flush()

    def _drop(self, count: int) -> None:
        self._metrics.dropped.inc(count)
        self._waiting, self._waiting_bytes = [], 0

    def _took(self, seconds: float) -> None:
        """Record a round trip."""
        self._metrics.seconds.observe(seconds)
        self._round_trips.append(seconds)
        self._round_trip_s = sorted(self._round_trips)[len(self._round_trips) // 4]

    async def _probe_read(self, link: Link) -> None:
        asked_at = time.monotonic()
        if not isinstance(await link.ask("MGET", PROBE_KEY), list):
            raise LinkError(WRONG_ANSWER)
        self._took(time.monotonic() - asked_at)

    def _read(self, keys: Sequence[bytes], replies: Replies) -> Sequence[Found]:
        """The result for each key in an answer."""
        if replies is None:  # the breaker is notified by the link
            return [NotFound.ERROR] * len(keys)
        (values,) = replies
        if not isinstance(values, list) or len(values) != len(keys):
            self._reads.failed(str(values) if isinstance(values, LinkError) else WRONG_ANSWER)
            return [NotFound.ERROR] * len(keys)
        self._reads.succeeded()
        return [self._value(key, data) for key, data in zip(keys, values, strict=True)]

    def _value(self, key: bytes, data: object) -> Found:
        if data is None:
            return NotFound.MISS
        try:
            return decode(key, data) if isinstance(data, bytes) else NotFound.WRONG
        except WrongValue as wrong:
            if self._complaints < FEW_COMPLAINTS:
                self._complaints += 1
                LOG.warning("shared_cache_value_wrong", problem=str(wrong))
            return NotFound.WRONG


async def _probe_write(link: Link) -> None:
    await link.ask("SET", PROBE_KEY, b"", "PX", "1000")
