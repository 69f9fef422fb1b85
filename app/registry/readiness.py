"""Readiness: which models the process needs, and which of them work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.registry.loaded_models import MAX_LISTED, NOT_BEGUN, LoadedModels
from app.types import ModelId

EVERY = "*"


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the process should get traffic, why not, and what else seems to be wrong."""

    ready: bool
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def but(self, reason: str) -> Readiness:
        """Not ready, for the existing reasons, or for this one if there are none."""
        return Readiness(False, self.reasons or (reason,), self.warnings)


class Requirements:
    """Models without which the process is not ready.

    Args:
        names: names of the required models; EVERY: all models first found in the repository.
    """

    def __init__(self, models: LoadedModels, names: Iterable[str]) -> None:
        self._models = models
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

    def resolve_every(self) -> None:
        """Resolve EVERY to the models in the repository now."""
        if EVERY in self._names and self._models.names:
            self._names = set(self._models.names)

    def problems(self, serves: Callable[[ModelId], bool]) -> dict[str, str]:
        """Models that should work but do not, by name, with the reason.

        A model that was unloaded on request is not a problem.

        Args:
            serves: whether a working replica has the version.
        """
        models = self._models
        there = set(models.names)
        reasons: dict[str, str] = {}
        for name in sorted((there | self._names) - {EVERY}):
            current, handler = models.get(name), models.handler(name)
            if handler is not None:
                if not serves(handler.id):
                    problem = handler.pool.problem() or models.missing(handler.manifest)
                    reasons[name] = f"the handler {handler.id} does not work: {problem}"
            elif current is not None:
                if not serves(current.id):
                    reasons[name] = f"no replica of {current.id} works"
            elif name not in there and models.is_discovered:
                reasons[name] = f"the required model {name!r} is not in the repository"
            elif not models.is_unloaded(name):
                reasons[name] = str(models.why_not(name))
        return reasons

    def readiness(self, serves: Callable[[ModelId], bool]) -> Readiness:
        """Ready if every required model works, or any model if none is required.

        Args:
            serves: see `problems`.
        """
        models = self._models
        if models.is_unreadable:
            return Readiness(False, ("the repository cannot be read; the log has the reason",))
        if not models.has_begun:
            return Readiness(False, (NOT_BEGUN,))
        if not models.is_discovered:
            return Readiness(False, ("the repository has not been read yet",))
        problems = self.problems(serves)
        reasons = [] if models.names else ["the repository has no models; export one"]
        served = [each.id.name for each in models.models()]
        served += [each.id.name for each in models.handlers()]
        answers = any(name not in problems for name in served)
        reasons += [text for name, text in problems.items() if name in self._names or not answers]
        if len(reasons) > MAX_LISTED:
            reasons[MAX_LISTED:] = [f"and {len(reasons) - MAX_LISTED} more"]
        problem = models.default_problem
        return Readiness(not reasons, tuple(reasons), () if problem is None else (problem,))
