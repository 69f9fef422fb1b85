"""What the engine knows of a model whose computed items are copied for another version."""

from __future__ import annotations

from typing import Protocol

from app.types import Arrays, Item


class Copies(Protocol):
    """Takes copies of computed items. On the event loop; must be quick."""

    def offer(self, item: Item, outputs: Arrays) -> None:
        """Take an item, or not.

        Args:
            item: as it was computed.
            outputs: its prediction.
        """
