"""Who is let into the queue: decided at once and as a whole, before anything has changed."""

from __future__ import annotations

from collections.abc import Collection

from app.engine.clock import Clock
from app.engine.forecast import Forecast
from app.engine.line import Line
from app.engine.refusal import Refusal
from app.errors import DeadlineExceeded, Overloaded, PayloadTooLarge
from app.types import Item


class Admission:
    """Refuses what does not fit into the queue, and what would be answered too late.

    Args:
        forecast: says when something would be answered.
        clock: the engine's.
    """

    def __init__(self, forecast: Forecast, clock: Clock) -> None:
        self._forecast = forecast
        self._clock = clock

    def admit(
        self, line: Line, fresh: Collection[Item], deadline: float, lag_s: float = 0.0
    ) -> None:
        """Return if a request may go on.

        Args:
            line: its model's.
            fresh: its items that would have to be queued.
            deadline: of them all.
            lag_s: what `ReadingLag` said when the request was read.

        Raises:
            DeadlineExceeded, Overloaded, PayloadTooLarge: it may not.
        """
        allowed_s = deadline - self._clock.now()
        if allowed_s <= 0:
            raise DeadlineExceeded("the deadline had passed when the request arrived; allow more")
        if fresh:
            self._check_room(line, fresh, allowed_s)
            shapes = 1 if len(fresh) == 1 else len({item.signature for item in fresh})
            self.foresee(line, len(fresh), deadline, lag_s, shapes)

    def foresee(
        self, line: Line, fresh: int, deadline: float, lag_s: float, shapes: int = 1
    ) -> None:
        """Return if so many items would be answered by their deadline, as far as one can tell.

        Args:
            line: their model's.
            fresh: how many.
            deadline: of them all.
            lag_s: what `ReadingLag` said when the request was read.
            shapes: how many signatures they have.

        Raises:
            Overloaded: they would not.
        """
        now, left_s = self._clock.now(), self._forecast.left_s(deadline, lag_s)
        waiting = line.batcher.waiting
        known = line.refused
        if known and waiting and known.holds(now, left_s, deadline, waiting, line.running):
            raise Overloaded(known.message, retry_after_s=max(0.0, known.clear_at - now))
        if self._forecast.can_meet(line, fresh, deadline, left_s, shapes):
            return
        allowed_s = deadline - now
        clear_s = self._forecast.clear_s(line, allowed_s)
        message = (
            f"it would not be ready within {allowed_s * 1000:.0f} ms: {waiting} "
            "items wait; try again later, allow more or ask another server"
        )
        if fresh == 1:
            line.refused = Refusal(
                now,
                left_s,
                deadline,
                waiting=waiting,
                running=line.running,
                clear_at=now + clear_s,
                message=message,
            )
        raise Overloaded(message, retry_after_s=clear_s)

    def _check_room(self, line: Line, fresh: Collection[Item], allowed_s: float) -> None:
        """Refuse what the queue cannot hold now, or never could."""
        queue, nbytes = line.batcher, 0
        for item in fresh:
            nbytes += item.nbytes
        if len(fresh) > queue.limit_items:
            raise PayloadTooLarge(
                f"{len(fresh)} different items in one request, the queue holds "
                f"{queue.limit_items}; split it"
            )
        if nbytes > queue.limit_bytes:
            raise PayloadTooLarge(
                f"the different items of one request take {nbytes} bytes, the queue holds "
                f"{queue.limit_bytes}; split it, or send smaller items"
            )
        if len(fresh) > queue.room:
            raise Overloaded(
                f"{queue.waiting} items wait and {len(fresh)} more do not fit "
                f"(limit {queue.limit_items}); try again later or send fewer at once",
                retry_after_s=self._forecast.clear_s(line, allowed_s),
            )
        if nbytes > queue.room_bytes:
            raise Overloaded(
                f"{queue.waiting} items of {queue.waiting_bytes} bytes wait and {nbytes} bytes "
                f"more do not fit (limit {queue.limit_bytes}); try again later or send fewer at "
                "once",
                retry_after_s=self._forecast.clear_s(line, allowed_s),
            )
