"""When versions that were refused are tried again: soon at first, then less and less often."""

from __future__ import annotations

import time
from typing import NamedTuple

from app.sources.listing import Listed
from app.types import ModelId

QUICK = 3  # tries at following looks
FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 3600.0


class _Try(NamedTuple):
    """A version that was refused: in which state, how often, and when it is tried again."""

    listed: Listed
    times: int
    again_at: float  # moment of time.monotonic


class Tries:
    """Remembers refused versions, as they were listed; what changes is tried at once."""

    def __init__(self) -> None:
        self._tries: dict[ModelId, _Try] = {}

    def waits(self, model: ModelId, listed: Listed) -> bool:
        """Whether it is too early to try a version again."""
        tried = self._tries.get(model)
        return tried is not None and tried.listed == listed and time.monotonic() < tried.again_at

    def failed(self, model: ModelId, listed: Listed) -> None:
        """Record that a version was refused."""
        before = self._tries.get(model)
        times = before.times + 1 if before is not None and before.listed == listed else 1
        wait_s = 0.0 if times < QUICK else min(FIRST_WAIT_S * 2 ** (times - QUICK), LONGEST_WAIT_S)
        self._tries[model] = _Try(listed, times, time.monotonic() + wait_s)

    def forget(self, model: ModelId) -> None:
        """Forget a version, which is there now."""
        self._tries.pop(model, None)

    def forget_all(self) -> None:
        """Try all versions again."""
        self._tries.clear()
