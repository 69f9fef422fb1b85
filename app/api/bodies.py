"""Total memory limit for the request bodies of all callers that are still arriving."""

from __future__ import annotations

from app.errors import Overloaded

AGAIN_S = 1.0  # a guess: it is unknown when the other bodies will be complete
FREE_BYTES = 64 << 10  # of each body: small bodies are accepted even when the memory is full


class BodyMemory:
    """Bounds the memory of incomplete bodies; used on the event loop only.

    Each body has its own size limit and timeout, but a thousand callers that send slowly would
    still fill any memory. The first 64 KiB of each body are not counted. A complete body is no
    longer counted here; its items count in the queue.

    Args:
        limit: bytes for all bodies in total.

    Attributes:
        held: bytes counted now.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def hold(self, size: int, before: int) -> int:
        """Count the bytes of a body that has grown and is not complete.

        Args:
            size: bytes received so far.
            before: what this last returned for the body; 0 at first.

        Returns:
            What to give back once the body is complete or no longer wanted.

        Raises:
            Overloaded: if all bodies would exceed the limit; nothing more was counted.
        """
        counted = max(0, size - FREE_BYTES)
        if self.held - before + counted > self.limit:
            raise Overloaded(
                f"unfinished request bodies take {self.held} bytes, the limit is {self.limit}; "
                "try again later, or send the body faster",
                retry_after_s=AGAIN_S,
            )
        self.held += counted - before
        return counted

    def give_back(self, counted: int) -> None:
        """Release what `hold` last returned for a body."""
        self.held -= counted
