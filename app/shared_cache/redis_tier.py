"""The engine's second cache, in a Redis or Valkey: questions with a budget, writes aside.

A request waits for a question, and for nothing else here. Two connections: what is written never
delays what is read.
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
PREFIX = b"torchlane:"  # of all keys, so that rights can be given for them
PROBE_KEY = PREFIX + b"probe"
# The newest round trips, of which the lower quartile counts: stalls of this process, such as while
# it loads a model, say nothing of the server.
ROUND_TRIPS = 9
WRITE_LIMIT_S = 0.5  # for a probe of writing, which nobody waits for
MOST_WAITING = 4096  # values to be written
MOST_WAITING_BYTES = 16 << 20
MOST_PIPELINES = 4  # of them that wait for their answers
CLOSE_S = 0.5  # for the last writes, when the server stops
FEW_COMPLAINTS = 5  # about wrong values, of one process


@dataclass(frozen=True, slots=True)
class TierConfig:
    """Times in seconds.

    Attributes:
        budget_s: a request waits for it for that long at most.
        ttl_s: how long the server is to keep a value.
    """

    budget_s: float
    ttl_s: float


class RedisTier(SharedTier):
    """See the module and `SharedTier`. Owned by the event loop.

    Args:
        address: of the server.
        config: times.
        metrics: where to count.
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
        """Disconnect; what was to be written is given a moment."""
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
        """See `SharedTier`: a SET among those of this turn."""
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
        """Send what waits, unless too much of what was sent is not answered yet."""
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
        if replies is None:  # the breaker knows
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
        """Follow the round trip."""
        self._metrics.seconds.observe(seconds)
        self._round_trips.append(seconds)
        self._round_trip_s = sorted(self._round_trips)[len(self._round_trips) // 4]

    def _late(self) -> None:
        self._reads.failed("it does not answer in time")

    def _read(self, keys: Sequence[bytes], replies: Replies, seconds: float) -> Sequence[Found]:
        """What an answer says of each key."""
        if replies is None:  # the breaker knows
            return [NotFound.ERROR] * len(keys)
        self._took(seconds)
        (values,) = replies
        if not isinstance(values, list) or len(values) != len(keys):
            known = isinstance(values, LinkError)
            self._reads.failed(str(values) if known else "an answer to something else")
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
        tier: that asks.
        keys: of which.
        answered: gets the answer, unless it is given up before.
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
    """Nobody waits for it."""
