"""Streams that do what they are told as late as they may, in any order that they may.

What waits too little, or uses memory again too early, gives wrong answers on them, every time; on
a real device it would do so now and then.
"""

from __future__ import annotations

import enum
import random
import threading
from collections import deque

import pytest
import torch

from app.backends.forward import FormBackend
from app.backends.lane import DeviceSpan, DeviceWork


class Order(enum.Enum):
    """In which order what is due is done."""

    NO_MORE_THAN_NEEDED = "no more than needed"
    OTHERS_FIRST = "all that does not wait for it goes first"
    ANY = "any order"


class LateSpan:
    """Something that is yet to be done; see `DeviceSpan`."""

    def __init__(
        self, streams: LateStreams, queue: str, work: DeviceWork, after: DeviceSpan | None
    ) -> None:
        self.queue = queue
        self.work = work
        self.after = after
        self.error: Exception | None = None
        self.has_ended = False
        self._asked = 0
        self._streams = streams

    def wait(self) -> None:
        """See `DeviceSpan`."""
        self._streams.until(self)
        if self.error is not None:
            raise self.error

    @property
    def is_done(self) -> bool:
        """See `DeviceSpan`; it is when it has been asked a few times."""
        self._asked += 1
        if self._asked > 3:
            self._streams.until(self)
        if self.error is not None:
            raise self.error
        return self.has_ended

    @property
    def seconds(self) -> float:
        """See `DeviceSpan`."""
        assert self.has_ended
        return 0.001


class LateStreams:
    """See `Streams`; in host memory.

    Args:
        order: in which order it does things.
        seed: of `Order.ANY`.
        tells_at_once: what fails fails when it is told, as a wrong shape does; what of it was
            begun by then still scribbles over the memory of the device, later.

    Attributes:
        made_bytes: memory that was asked for.
    """

    def __init__(
        self,
        order: Order = Order.ANY,
        seed: int = 0,
        *,
        tells_at_once: bool = False,
    ) -> None:
        self.made_bytes: list[int] = []
        self._order = order
        self._random = random.Random(seed)
        self._tells_at_once = tells_at_once
        self._device: list[torch.Tensor] = []
        self._queues: dict[str, deque[LateSpan]] = {
            queue: deque() for queue in ("copy in", "compute", "copy out")
        }

    def host_bytes(self, count: int) -> torch.Tensor:
        """See `Streams`."""
        self.made_bytes.append(count)
        return torch.zeros(count, dtype=torch.uint8)

    def device_bytes(self, count: int) -> torch.Tensor:
        """See `Streams`."""
        self._device.append(self.host_bytes(count))
        return self._device[-1]

    def copy_in(self, work: DeviceWork) -> LateSpan:
        """See `Streams`."""
        return self._put("copy in", work)

    def compute(self, work: DeviceWork, after: DeviceSpan) -> LateSpan:
        """See `Streams`."""
        span = self._put("compute", work, after)
        if self._tells_at_once:
            self._do(span)
            if span.error is not None:
                self._put("compute", self._scribble)
                raise span.error
        return span

    def copy_out(self, work: DeviceWork, after: DeviceSpan) -> LateSpan:
        """See `Streams`."""
        return self._put("copy out", work, after)

    def finish(self) -> None:
        """See `Streams`."""
        for queue in self._queues.values():
            while queue:
                self._do(queue[0])

    @property
    def waiting(self) -> int:
        """What is yet to be done."""
        return sum(len(queue) for queue in self._queues.values())

    def until(self, span: LateSpan) -> None:
        """Do it, and what must or may be done before it."""
        if span.has_ended:
            return
        if self._order is not Order.NO_MORE_THAN_NEEDED:
            others = [each for queue in self._queues.values() for each in queue]
            self._random.shuffle(others)
            for each in others:
                goes_first = self._order is Order.OTHERS_FIRST or self._random.random() < 0.5
                if goes_first and not each.has_ended and not self._waits_for(each, span):
                    self._do(each)
        self._do(span)

    def _do(self, span: LateSpan) -> None:
        """After what is before it in its queue, and what it waits for."""
        if span.has_ended:
            return
        while self._queues[span.queue][0] is not span:
            self._do(self._queues[span.queue][0])
        if isinstance(span.after, LateSpan):
            self._do(span.after)
        self._queues[span.queue].popleft()
        span.has_ended = True
        try:
            span.work()
        except Exception as error:  # raised where it is waited for
            span.error = error
        if isinstance(span.after, LateSpan) and span.after.error is not None:
            span.error = span.after.error

    def _scribble(self) -> None:
        for memory in self._device:
            memory.fill_(0x42)

    def _waits_for(self, span: LateSpan, other: LateSpan) -> bool:
        queue = self._queues[span.queue]
        before = list(queue)[: list(queue).index(span) + 1]
        return any(
            each is other
            or (
                isinstance(each.after, LateSpan)
                and not each.after.has_ended
                and self._waits_for(each.after, other)
            )
            for each in before
        )

    def _put(self, queue: str, work: DeviceWork, after: DeviceSpan | None = None) -> LateSpan:
        span = LateSpan(self, queue, work, after)
        self._queues[queue].append(span)
        return span


def put_everything_off(monkeypatch: pytest.MonkeyPatch) -> list[LateStreams]:
    """Every backend that is made from now on is on such a device; returns its streams, by thread.

    A thread's own, as on a real device: they are used by no other.
    """
    of_thread = threading.local()
    made: list[LateStreams] = []

    def streams(_: FormBackend) -> LateStreams:
        if not hasattr(of_thread, "streams"):
            of_thread.streams = LateStreams(seed=len(made))
            made.append(of_thread.streams)
        found: LateStreams = of_thread.streams
        return found

    monkeypatch.setattr(FormBackend, "streams", streams)
    monkeypatch.setattr(FormBackend, "works_by_itself", True)
    return made
