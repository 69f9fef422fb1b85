"""What a lifecycle needs of a source, which brings versions from a store into the repository."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from app.types import ModelId


class Source(Protocol):
    """Keeps the repository as a store has it; `app.sources.source` has the real one."""

    async def need(self, versions: Collection[ModelId]) -> None:
        """Replace the versions whose files are needed in addition to the policy's."""

    async def first(self) -> None:
        """Wait until the repository has something to serve, or the store has failed."""

    async def refresh(self) -> None:
        """Look at the store now, and wait until that has ended, or for a time."""

    async def close(self) -> None:
        """Look no more."""

    def why_empty(self) -> str:
        """Why there are no models."""
