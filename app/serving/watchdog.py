"""Tells a replica that hangs from one that was not allowed to run."""

from __future__ import annotations

from typing import Protocol


class Watched(Protocol):
    """What is looked at; `app.engine.execution.replica.Replica` is one."""

    @property
    def name(self) -> str:
        """Of the replica."""
        ...

    @property
    def step(self) -> int | None:
        """Number of what it is at, never the same for two steps; None: at nothing."""
        ...


class Watchdog:
    """Counts looks, not seconds.

    Where a whole process stands still - its container is paused, its virtual machine moves to
    another host - time goes on and no look is taken: a clock would find every forward hanging.

    Args:
        looks: who has been at one step from a first look to this many after it hangs.
    """

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._seen: dict[str, tuple[int, int]] = {}  # replica -> step, looks since the first

    def hangs(self, replica: Watched) -> bool:
        """Look at a replica; true once it hangs, and at every further look at the same step."""
        step = replica.step
        if step is None:
            self._seen.pop(replica.name, None)
            return False
        before, looks = self._seen.get(replica.name, (None, 0))
        looks = looks + 1 if step == before else 0
        self._seen[replica.name] = step, looks
        return looks >= self._looks
