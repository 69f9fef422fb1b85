"""Distinguishes a hanging replica from one that was not allowed to run."""

from __future__ import annotations

from typing import Protocol


class Watched(Protocol):
    """A watched object, such as `app.engine.replica.Replica`."""

    @property
    def name(self) -> str:
        """Name of the replica."""
        ...

    @property
    def step(self) -> int | None:
        """Number of the current step, unique for each step; None if idle."""
        ...


class Watchdog:
    """Counts checks, not seconds.

    If the whole process is paused (with its container, or while its virtual machine moves to
    another host), time passes without a check: by the clock, every forward would seem to hang.

    Args:
        checks: a replica hangs if it is still at the same step after this many checks.
    """

    def __init__(self, checks: int) -> None:
        self._checks = checks
        self._seen: dict[str, tuple[int, int]] = {}  # replica -> step, checks since the first

    def hangs(self, replica: Watched) -> bool:
        """Check a replica; true once it hangs, and at every later check of the same step."""
        step = replica.step
        if step is None:
            self._seen.pop(replica.name, None)
            return False
        before, checks = self._seen.get(replica.name, (None, 0))
        checks = checks + 1 if step == before else 0
        self._seen[replica.name] = step, checks
        return checks >= self._checks
