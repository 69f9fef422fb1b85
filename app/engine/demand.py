"""What the engine knows of a model that is loaded on demand."""

from __future__ import annotations

from typing import Protocol


class Demand(Protocol):
    """Loads a model when a request needs it. On the event loop.

    Attributes:
        is_cold: whether no replica has the model, or it is about to be removed from them: its items
            wait until it is loaded.
    """

    is_cold: bool

    @property
    def may_load(self) -> bool:
        """Whether a load may be tried: there is room, and none has failed a moment ago."""

    def used(self) -> None:
        """Count an accepted request that needs the model."""

    def ask(self, allowed_s: float, *, for_copies: bool = False) -> None:
        """Start loading the model, which is cold, unless that has begun.

        Args:
            allowed_s: seconds until the deadline of the request.
            for_copies: whether no caller waits, so that no other model leaves for it.

        Raises:
            Overloaded: if there is no room for it now, or loading it takes longer.
            ModelNotReady: if it could not be loaded a moment ago, or never fits.
        """
