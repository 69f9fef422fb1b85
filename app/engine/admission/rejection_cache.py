"""A rejection that holds for later requests: under overload nothing else is done as often."""

from __future__ import annotations

HOLDS_S = 0.001  # and no longer than a hundredth of the time that was left
HOLDS_SHARE = 0.01  # of the time left: a request with that much more is rejected as well


class Rejection:
    """Says no again where nothing has become better since. On the event loop.

    A prediction costs as much as everything else that the engine does for a request that it
    rejects. What was found for one request holds for a later one that has no more time left and is
    due no earlier, as long as no fewer items wait and no fewer batches run. Any other improvement,
    such as a replica that is ready again, is noticed a millisecond late.

    Args:
        now: when it was found.
        left_s: the time that the rejected request had left.
        deadline: of it.
        waiting: items that waited for the model.
        running: batches of it that ran.
        clear_at: when what waited will be done.
        message: for its caller.
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
        # Without any time left nothing depends on how much.
        holds_s = min(HOLDS_S, HOLDS_SHARE * left_s) if left_s > 0 else HOLDS_S
        self._until = now + holds_s
        self._left_s = left_s + holds_s if left_s > 0 else 0.0
        self._deadline = deadline
        self._waiting = waiting
        self._running = running
        self.clear_at = clear_at
        self.message = message

    def holds(self, now: float, left_s: float, deadline: float, waiting: int, running: int) -> bool:
        """Whether it holds for a request that is no smaller than the one that was rejected."""
        return (
            now < self._until
            and left_s <= self._left_s
            and deadline >= self._deadline
            and waiting >= self._waiting
            and running >= self._running
        )
