"""Readiness: which models the process needs, and which of them work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.registry.loaded_models import MAX_NAMED, LoadedModels
from app.types import ModelId

EVERY = "*"


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the process should get traffic, and why not."""

    ready: bool
    reasons: tuple[str, ...]

    def but(self, reason: str) -> Readiness:
        """Not ready, for the existing reasons, or for this one if there are none."""
        return Readiness(False, self.reasons or (reason,))


class Requirements:
    """Models without which the process is not ready.

    Args:
        loaded: the loaded models.
        names: names of the required models; EVERY: all models first found in the repository.
    """

    def __init__(self, loaded: LoadedModels, names: Iterable[str]) -> None:
        self._loaded = loaded
        self._names = set(names)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @property
    def name_any(self) -> bool:
        """Whether any model is required."""
        return bool(self._names - {EVERY})

    def change(self, names: Iterable[str]) -> None:
        """Require these models from now on."""
        self._names = set(names)

    def discovered(self) -> None:
        """Resolve EVERY to the models in the repository now."""
        if EVERY in self._names and self._loaded.names:
            self._names = set(self._loaded.names)

    def problems(self, serves: Callable[[ModelId], bool]) -> dict[str, str]:
        """Models that should work but do not, by name, with the reason.

        A model that was unloaded on request is not a problem.

        Args:
            serves: whether a working replica has the version.
        """
        loaded = self._loaded
        there = set(loaded.names)
        found: dict[str, str] = {}
        for name in sorted((there | self._names) - {EVERY}):
            current = loaded.get(name)
            if current is not None:
                if not serves(current.id):
                    found[name] = f"no replica of {current.id} works"
            elif name not in there and loaded.is_discovered:
                found[name] = f"the required model {name!r} is not in the repository"
            elif not loaded.is_unloaded(name):
                found[name] = str(loaded.why_not(name))
        return found

    def readiness(self, serves: Callable[[ModelId], bool]) -> Readiness:
        """Ready if every required model works, or any model if none is required.

        Args:
            serves: see `problems`.
        """
        loaded = self._loaded
        if loaded.is_unreadable:
            return Readiness(False, ("the repository cannot be read; the log has the reason",))
        if not loaded.is_discovered:
            return Readiness(False, ("the repository has not been read yet",))
        problems = self.problems(serves)
        reasons = [] if loaded.names else ["the repository has no models; export one"]
        answers = any(each.id.name not in problems for each in loaded.models())
        reasons += [text for name, text in problems.items() if name in self._names or not answers]
        if len(reasons) > MAX_NAMED:
            reasons[MAX_NAMED:] = [f"and {len(reasons) - MAX_NAMED} more"]
        return Readiness(not reasons, tuple(reasons))
