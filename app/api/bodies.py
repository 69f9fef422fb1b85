"""Total memory limit for the request bodies of all callers that are still arriving."""

from __future__ import annotations

from app.api.memory import Memory


class BodyMemory(Memory):
    """Bounds incomplete bodies. A complete one counts no longer; its items count in the queue.

    Args:
        limit: bytes for all bodies in total.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit, "unfinished request bodies", "send the body faster")
