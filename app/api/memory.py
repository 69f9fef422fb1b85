"""Memory limits that all callers share: bodies that arrive, and answers that are not sent."""

from __future__ import annotations

from app.errors import Overloaded

AGAIN_S = 1.0  # a guess: it is unknown when others will have sent or read everything
FREE_BYTES = 64 << 10  # of each holder: small ones are accepted even when the memory is full


class Memory:
    """Bounds what all holders take in total; used on the event loop only.

    Each holder has its own limits of size and time, but a thousand slow callers would still fill
    any memory. The first 64 KiB of each holder are not counted, and one alone always fits.

    Args:
        limit: bytes for all holders in total.
        what: what takes them, for the message of a rejection.
        advice: what else a rejected caller can do than to try again later.

    Attributes:
        held: bytes counted now.
    """

    def __init__(self, limit: int, what: str, advice: str) -> None:
        self.limit = limit
        self.held = 0
        self._what = what
        self._advice = advice

    @property
    def is_short(self) -> bool:
        """Whether more than half of the memory is taken."""
        return 2 * self.held > self.limit

    def hold(self, size: int, before: int) -> int:
        """Count the bytes of a holder that has changed its size.

        Args:
            size: its bytes.
            before: what this last returned for the holder; 0 at first.

        Returns:
            What to give back once the holder is gone.

        Raises:
            Overloaded: if all holders would exceed the limit; nothing more was counted.
        """
        counted = max(0, size - FREE_BYTES)
        others = self.held - before
        if others and counted > before and others + counted > self.limit:
            raise Overloaded(
                f"{self._what} take {self.held} bytes, the limit is {self.limit}, and this one "
                f"needs {size}; try again later, or {self._advice}",
                retry_after_s=AGAIN_S,
            )
        self.held += counted - before
        return counted

    def check(self, size: int) -> None:
        """Reject a holder before it has any bytes.

        Raises:
            Overloaded: if it would not fit now.
        """
        self.give_back(self.hold(size, 0))

    def give_back(self, counted: int) -> None:
        """Release what `hold` last returned for a holder."""
        self.held -= counted


class BodyMemory(Memory):
    """Bounds incomplete bodies. A complete one counts no longer; its items count in the queue.

    Args:
        limit: bytes for all bodies in total.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit, "unfinished request bodies", "send the body faster")
