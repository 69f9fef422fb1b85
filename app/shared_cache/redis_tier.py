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
from dataclasses import dataclass
from functools import partial

import structlog

from app.engine.shared_tier import Found, NotFound, SharedTier
from app.metrics import Metrics
from app.shared_cache.address import Address
from app.shared_cache.breaker import Breaker, Probe
from app.shared_cache.envelope import WrongValue, decode, encode
from app.shared_cache.link import LinkError, Replies, packed
from app.types import Arrays

LOG = structlog.get_logger(__name__)
PREFIX = b"torchlane:"  # of all keys, so that permissions can be granted for them
PROBE_KEY = PREFIX + b"probe"
# Number of newest round trips; their lower quartile is used, because stalls of this process, for
# example while it loads a model, say nothing about the server.
ROUND_TRIPS = 9
WRITE_LIMIT_S = 0.5  # for a write probe, which delays no request
MOST_WAITING = 4096  # values to be written
MOST_WAITING_BYTES = 16 << 20
MOST_PIPELINES = 4  # groups of writes that wait for their answers
CLOSE_S = 0.5  # for the last writes, when the server stops
FEW_COMPLAINTS = 5  # maximum log lines about wrong values, per process


@dataclass(frozen=True, slots=True)
class TierConfig:
    """Times in seconds.

    Attributes:
        budget_s: how long a request waits for the cache at most.
        ttl_s: how long the server keeps a value.
    """

    budget_s: float
    ttl_s: float


class RedisTier(SharedTier):
    """See the module and `SharedTier`. Owned by the event loop.

    Args:
        address: the server's address.
        config: times.
        metrics: counts look-ups and writes.
    """

    def __init__(self, address: Address, config: TierConfig, metrics: Metrics) -> None:
        self._budget_s = config.budget_s
        self._ttl_ms = str(max(1, round(config.ttl_s * 1000)))
        self._metrics = metrics.shared_cache(lambda: self.is_open)
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._round_trip_s = math.inf
        read = Probe(("MGET", PROBE_KEY), list, config.budget_s, self._took)
        write = Probe(("SET", PROBE_KEY, b"", "PX", "1000"), bytes, WRITE_LIMIT_S, _ignored)
        self._reads = Breaker("read", address.shown, address.connect, read)
        self._writes = Breaker("write", address.shown, address.connect, write)
        self._waiting: list[tuple[bytes, bytes]] = []
        self._waiting_bytes = 0
        self._is_flushing = False
        self._complaints = 0

    @property
    def budget_s(self) -> float:
        """See `SharedTier`."""
        return self._budget_s

    @property
    def is_open(self) -> bool:
        """See `SharedTier`."""
        return self._reads.link is None

    @property
    def round_trip_s(self) -> float:
        """See `SharedTier`."""
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
        question = _Question(self, keys, answered)
        link = self._reads.link
        if link is None:
            answered([NotFound.OPEN] * len(keys))
            return question.give_up
        self._reads.used = True
        command = packed("MGET", *[PREFIX + key for key in keys])
        link.send(command, 1, question.replied)
        return question.give_up

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
        self._writes.used = True
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

    def _late(self) -> None:
        self._reads.failed("it does not answer in time")

    def _read(self, keys: Sequence[bytes], replies: Replies, seconds: float) -> Sequence[Found]:
        """The result for each key in an answer."""
        if replies is None:  # the breaker is notified by the link
            return [NotFound.ERROR] * len(keys)
        self._took(seconds)
        (values,) = replies
        if not isinstance(values, list) or len(values) != len(keys):
            known = isinstance(values, LinkError)
            self._reads.failed(str(values) if known else "an answer of the wrong type or length")
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


class _Question:
    """One MGET, until it is answered.

    Args:
        tier: sends the command.
        keys: the keys to look up.
        answered: called with the answer, unless the look-up is given up first.
    """

    __slots__ = ("_answered", "_asked_at", "_keys", "_tier")

    def __init__(
        self,
        tier: RedisTier,
        keys: Sequence[bytes],
        answered: Callable[[Sequence[Found]], None],
    ) -> None:
        self._tier = tier
        self._keys = keys
        self._answered: Callable[[Sequence[Found]], None] | None = answered
        self._asked_at = time.monotonic()

    def replied(self, replies: Replies) -> None:
        answered, self._answered = self._answered, None
        seconds = time.monotonic() - self._asked_at
        if answered is not None:
            answered(self._tier._read(self._keys, replies, seconds))
        elif replies is not None:
            self._tier._took(seconds)

    def give_up(self) -> None:
        if self._answered is not None:
            self._answered = None
            self._tier._late()


def _ignored(_: float) -> None:
    """Ignore the time of a write probe."""
