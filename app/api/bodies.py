"""The memory of bodies that are still on their way: of all callers together."""

from __future__ import annotations

from app.errors import Overloaded

AGAIN_S = 1.0  # a guess: nobody knows when the others will have sent the rest of theirs
FREE_BYTES = 64 << 10  # of each body: whoever fills the memory keeps nobody out whose body is small


class BodyMemory:
    """Bounds what the pieces that have come take. On the event loop.

    Each body has a bound of its own, and a time: a thousand callers who send theirs slowly would
    otherwise fill any memory. The first 64 KiB of each are not counted. A body that has come whole
    is counted no more; its items are, where they wait.

    Args:
        limit: bytes that they may take together.

    Attributes:
        held: bytes that they take now.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def hold(self, size: int, before: int) -> int:
        """A body has grown, and is not whole yet.

        Args:
            size: bytes of it that have come.
            before: what this has returned for it before; at first 0.

        Returns:
            What to give back when it has come whole, or is not wanted any more.

        Raises:
            Overloaded: all bodies would take too much; nothing more was counted.
        """
        counted = max(0, size - FREE_BYTES)
        if self.held - before + counted > self.limit:
            raise Overloaded(
                f"bodies that are still on their way take {self.held} bytes, at most {self.limit} "
                "are held; try again later, or send the body faster",
                retry_after_s=AGAIN_S,
            )
        self.held += counted - before
        return counted

    def give_back(self, counted: int) -> None:
        """What `hold` has returned for a body last."""
        self.held -= counted
