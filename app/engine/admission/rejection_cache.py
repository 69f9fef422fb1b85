"""A rejection that also holds for later requests: the most frequent operation under overload."""

from __future__ import annotations

HOLDS_S = 0.001  # and at most a hundredth of the time that was left
HOLDS_SHARE = 0.01  # of the time left: a request with that much more is also rejected


class Rejection:
    """Rejects later requests while nothing has improved. Owned by the event loop.

    Predicting the completion time costs as much as the rest of the engine's work for a rejected
    request. A rejection holds for a later request that has no more time left and is due no earlier,
    as long as no fewer items wait and no fewer batches run. Any other improvement, such as a
    replica that is ready again, is noticed a millisecond late.

    Args:
        now: the time of the rejection.
        left_s: the time that the rejected request had left.
        deadline: the deadline of that request.
        waiting: number of items that waited for the model.
        running: number of its running batches.
        clear_at: when the waiting items will be done.
        message: for the caller.
    """

    __slots__ = (
        "_deadline",
        "_left_s",
        "_running",
        "_until",
        "_waiting",
        "clear_at",
        "message",
    )

    def __init__(
        self,
        now: float,
        left_s: float,
        deadline: float,
        *,
        waiting: int,
        running: int,
        clear_at: float,
        message: str,
    ) -> None:
        # If no time is left, the result does not depend on how late the request is.
        holds_s = min(HOLDS_S, HOLDS_SHARE * left_s) if left_s > 0 else HOLDS_S
        self._until = now + holds_s
        self._left_s = left_s + holds_s if left_s > 0 else 0.0
        self._deadline = deadline
        self._waiting = waiting
        self._running = running
        self.clear_at = clear_at
        self.message = message

    def holds(self, now: float, left_s: float, deadline: float, waiting: int, running: int) -> bool:
        """Whether it holds for a request that is no smaller than the rejected one."""
        return (
            now < self._until
            and left_s <= self._left_s
            and deadline >= self._deadline
            and waiting >= self._waiting
            and running >= self._running
        )
