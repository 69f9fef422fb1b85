"""Brings the served versions of each model, and their settings, to the wanted state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from app.engine.execution.handover import in_thread
from app.registry.loaded_models import LoadedModels, ModelState, VersionStatus
from app.registry.model_settings import ModelSettings
from app.registry.repository import Repository, Stamp
from app.serving.installer import Attempt, Installer
from app.serving.overrides import Override
from app.serving.version_policy import VersionPolicy
from app.types import ModelId

AGAIN_S = 60.0  # before a retry of a version that failed for a temporary reason


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes made by one check of the repository."""

    loaded: list[ModelId] = field(default_factory=list)
    retired: list[ModelId] = field(default_factory=list)
    failed: list[VersionStatus] = field(default_factory=list)


class Tried(NamedTuple):
    """A version that failed to load, and the time of its next attempt if nothing changes."""

    attempt: Attempt
    stamp: Stamp
    settings: ModelSettings
    again_at: float


class Rollout:
    """Serves the versions of each model that the policy selects, with their settings.

    Args:
        repository: the artifacts on disk.
        installer: loads and retires one version.
        loaded: records what is loaded.
        policy: which versions to serve.
        settings: returns a model's settings, by its name.
    """

    def __init__(
        self,
        repository: Repository,
        installer: Installer,
        loaded: LoadedModels,
        *,
        policy: VersionPolicy,
        settings: Callable[[str], ModelSettings],
    ) -> None:
        self._repository = repository
        self._installer = installer
        self.loaded = loaded
        self._policy = policy
        self._settings = settings
        self._tried: dict[ModelId, Tried] = {}  # versions that failed to load

    def forget_failures(self) -> None:
        """Try failed versions again at the next check."""
        self._tried.clear()

    async def bring_up(
        self, name: str, on_disk: Sequence[int], override: Override, changes: Changes
    ) -> None:
        """Serve the wanted versions of one model, then retire the others."""
        wanted = self._policy.wanted(name, on_disk, override)
        kept: list[ModelId] = []
        for number in wanted.candidates:
            model = ModelId(name, number)
            if len(kept) >= wanted.most:
                break
            attempt = await self._serve(model, changes)
            if attempt is Attempt.LOADED:
                kept.append(model)
            elif attempt is Attempt.REJECTED:  # no downgrade: served versions stay
                rest = (ModelId(name, other) for other in wanted.candidates)
                kept.extend(m for m in rest if self.loaded.serves(m) and m not in kept)
                break
        for number in wanted.extra:
            model = ModelId(name, number)
            if model not in kept and await self._serve(model, changes) is Attempt.LOADED:
                kept.append(model)
        for model in self.loaded.versions(name):
            # The last good version stays, even without its files, unless it was unloaded.
            if model not in kept and (kept or override.forbids(model)):
                await self._installer.retire(model, self.loaded)
                changes.retired.append(model)
        for number in on_disk:
            model = ModelId(name, number)
            if override.forbids(model) and not self.loaded.serves(model):
                self.loaded.record(VersionStatus(model, ModelState.UNLOADED))
        self.loaded.forget(name, (*on_disk, *wanted.candidates))

    async def _serve(self, model: ModelId, changes: Changes) -> Attempt:
        """Serve a version with its current settings, or with the earlier ones if that fails."""
        served = self.loaded.served(model)
        if served is None:
            return await self._attempt(model, changes)
        if served.settings != self._settings(model.name):
            await self._attempt(model, changes)
        else:
            self._tried.pop(model, None)
            self.loaded.mended(model)  # the failed settings are no longer wanted
        return Attempt.LOADED

    async def _attempt(self, model: ModelId, changes: Changes) -> Attempt:
        """Load a version, unless it failed before and nothing has changed since."""
        stamp = await in_thread(lambda: self._repository.stamp(model), _discard)
        settings = self._settings(model.name)
        tried = self._tried.get(model)
        if (
            tried is not None
            and (tried.stamp, tried.settings) == (stamp, settings)
            and time.monotonic() < tried.again_at
        ):
            return tried.attempt
        attempt = await self._installer.install(model, self.loaded)
        if attempt is Attempt.LOADED:
            self._tried.pop(model, None)
            changes.loaded.append(model)
        else:
            again_s = AGAIN_S if attempt is Attempt.HINDERED else math.inf
            self._tried[model] = Tried(attempt, stamp, settings, time.monotonic() + again_s)
            changes.failed.extend(s for s in self.loaded.statuses(model.name) if s.id == model)
        return attempt


def _discard(_: object) -> None:
    """Drop a result that is no longer wanted."""
