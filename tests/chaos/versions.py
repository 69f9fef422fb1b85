"""Which version of a model may answer, as whoever publishes and watches them knows it."""

from __future__ import annotations

import time
from collections.abc import Callable


class Versions:
    """Good versions, and since when each was seen to be served.

    Args:
        models: names; version 1 of each is there from the beginning.
        now: a clock; the one that requests are timed by.
    """

    def __init__(self, models: tuple[str, ...], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._published = {model: {1} for model in models}
        self._seen: dict[str, list[tuple[float, int]]] = {model: [(0.0, 1)] for model in models}

    def published(self, model: str, version: int) -> None:
        """A good version is about to be put into the repository."""
        self._published[model].add(version)

    def seen(self, model: str, version: int) -> None:
        """The server says that it serves this version: no older one may answer from now on."""
        self._seen[model].append((self._now(), version))

    def newest(self, model: str) -> int:
        """The newest good version that was published."""
        return max(self._published[model])

    def why_not(self, model: str, version: int, asked: int | None, sent_at: float) -> str | None:
        """What is wrong with an answer by this version; None: nothing.

        Args:
            model: that answered.
            version: that answered.
            asked: the version that was asked for, if one was.
            sent_at: when the request was sent.
        """
        if version not in self._published[model]:
            return f"version {version} was never published as good"
        if asked not in (None, version):
            return f"version {version} answered, {asked} was asked"
        served = max(each for at, each in self._seen[model] if at <= sent_at)
        if asked is None and version < served:
            return f"version {version} answered, and {served} was served before it was asked"
        return None

    def is_gone(self, model: str, version: int) -> bool:
        """Whether a version need not be there: another one may have taken its place."""
        return len(self._published[model]) > 1 or version not in self._published[model]
