"""What a source is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from models.stores.urls import StoreUrl


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """Configuration of a source.

    Attributes:
        url: of the repository in the store.
        cache: folder of the cache.
        cache_bytes: the most bytes in it.
        cache_setting: name of the setting with that limit, for messages.
        poll_s: seconds between two looks; 0: only on request.
        policy: TORCHLANE_VERSIONS.
        models: the only models that are wanted; None: all.
        whose: see `Mirror`.
    """

    url: StoreUrl
    cache: Path
    cache_bytes: int
    cache_setting: str
    poll_s: float
    policy: str
    models: tuple[str, ...] | None = None
    whose: str = ""
