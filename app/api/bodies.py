"""The memory of bodies that are still on their way: of all callers together."""

from __future__ import annotations

from app.errors import Overloaded

AGAIN_S = 1.0  # nobody knows when the others will have sent the rest of theirs


class BodyMemory:
    """Bounds what the pieces that have come take. On the event loop.

    Each body has a bound of its own, and a time: a thousand callers who send theirs slowly would
    otherwise fill any memory. A body that has come whole is counted no more; its items are, where
    they wait.

    Args:
        limit: bytes that they may take together.

    Attributes:
        held: bytes that they take now.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def hold(self, nbytes: int) -> None:
        """So many more have come.

        Raises:
            Overloaded: they would be too many; nothing was counted.
        """
        if self.held + nbytes > self.limit:
            raise Overloaded(
                f"bodies that are still on their way take {self.held} bytes, at most {self.limit} "
                "are held; try again later, or send the body faster",
                retry_after_s=AGAIN_S,
            )
        self.held += nbytes

    def give_back(self, nbytes: int) -> None:
        """So many are not kept any more, or belong to a body that has come whole."""
        self.held -= nbytes
