"""Brings the served versions of each model, and their settings, to the wanted state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from app.errors import VersionChanged
from app.registry.loaded_models import (
    LoadedHandler,
    LoadedModel,
    LoadedModels,
    ModelState,
    VersionStatus,
)
from app.registry.model_settings import ModelSettings
from app.registry.releases import release_weights
from app.registry.repository import Stamp
from app.serving.installer import Attempt, Installer
from app.serving.overrides import Override
from app.serving.served_artifacts import ServedArtifacts, State
from app.serving.version_policy import VersionPolicy, Wanted
from app.threads import in_thread
from app.types import ModelId

LOG = structlog.get_logger(__name__)
AGAIN_S = 60.0  # before a retry of a version that failed for a temporary reason


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes made by one check of the repository.

    Attributes:
        loaded: versions that serve now.
        retired: versions that no longer serve.
        failed: versions that could not be loaded, or whose files changed although they are served.
    """

    loaded: list[ModelId] = field(default_factory=list)
    retired: list[ModelId] = field(default_factory=list)
    failed: list[VersionStatus] = field(default_factory=list)


class Tried(NamedTuple):
    """A version that failed to load, and the time of its next attempt if nothing changes.

    `changes` is the number of changes to the served versions, which a handler may wait for.
    """

    attempt: Attempt
    state: State
    settings: ModelSettings
    again_at: float
    changes: int


class Checked(NamedTuple):
    """A served version's files when they were last checked, and how they differ, if at all."""

    stamp: Stamp
    change: VersionChanged | None


class Rollout:
    """Serves the versions of each model that the policy selects, with their settings.

    Args:
        artifacts: the artifacts behind the served versions.
        installer: loads and retires one version.
        loaded: records what is loaded.
        policy: which versions to serve.
        settings: returns a model's settings, by its name.
    """

    def __init__(
        self,
        artifacts: ServedArtifacts,
        installer: Installer,
        loaded: LoadedModels,
        *,
        policy: VersionPolicy,
        settings: Callable[[str], ModelSettings],
    ) -> None:
        self._artifacts = artifacts
        self._installer = installer
        self.loaded = loaded
        self._policy = policy
        self._settings = settings
        self._tried: dict[ModelId, Tried] = {}  # versions that failed to load
        self._checked: dict[ModelId, Checked] = {}  # served versions
        self._idle_weights: dict[str, str] = {}  # by model, why some have no effect, as logged

    def waiting(self) -> list[str]:
        """The handlers that wait for models which may be served by now."""
        now = self.loaded.changes
        return sorted(
            {
                model.name
                for model, tried in self._tried.items()
                if tried.attempt is Attempt.WAITING and tried.changes != now
            }
        )

    def check_handlers(self) -> None:
        """Show which handlers cannot work now, and why."""
        for handler in self.loaded.handlers():
            problem = handler.pool.problem() or self.loaded.missing(handler.manifest)
            shown = next(
                each
                for each in self.loaded.statuses(handler.id.name)
                if each.id == handler.id.plain
            )
            state = ModelState.READY if problem is None else ModelState.FAILED
            if shown.changed or (
                shown.state is state and (not problem or shown.problem == problem)
            ):
                continue
            self.loaded.record(VersionStatus(handler.id.plain, state, problem))
            if problem is None:
                LOG.info("handler_ready", handler=str(handler.id))
            else:
                LOG.error("handler_not_ready", handler=str(handler.id), problem=problem)

    def check_weights(self) -> None:
        """Log which weights have no effect, because their versions are not served."""
        now = {
            name: problem
            for name in self.loaded.names
            if (split := self.loaded.split(name)) is not None
            and (problem := split.problem) is not None
        }
        before, self._idle_weights = self._idle_weights, now
        for name, problem in now.items():
            if before.get(name) != problem:
                LOG.warning("weights_without_version", model=name, problem=problem)
        for name in before.keys() - now.keys():
            LOG.info("weights_apply", model=name)

    def forget_failures(self) -> None:
        """Try failed versions again at the next check."""
        self._tried.clear()

    async def bring_up(
        self, name: str, on_disk: Sequence[int], override: Override, changes: Changes
    ) -> None:
        """Serve the wanted versions of one model, then retire the others."""
        wanted = self._policy.wanted(name, on_disk, override)
        kept: list[ModelId] = []
        tried: set[ModelId] = set()
        rejected = 0
        ordered = self._ordered(name, wanted)
        for at, number in enumerate(ordered):
            model = ModelId(name, number)
            if len(kept) + rejected >= wanted.most:
                break
            tried.add(model)
            attempt = await self._serve(model, changes)
            if attempt is Attempt.LOADED:
                kept.append(model)
            elif attempt in (Attempt.REJECTED, Attempt.WAITING):
                rejected += 1
                if not kept and number > max(ordered[at + 1 :], default=0):  # no downgrade
                    break
        if rejected:  # served versions stay
            rest = (ModelId(name, number) for number in wanted.candidates)
            kept.extend(m for m in rest if self.loaded.serves(m) and m not in kept)
        for number in self._extra(name, on_disk, wanted, override):
            model = ModelId(name, number)
            tried.add(model)
            if model not in kept and await self._serve(model, changes) is Attempt.LOADED:
                kept.append(model)
        for model in self.loaded.versions(name):
            # The last good version stays, even without its files, unless it was unloaded.
            if model not in kept and (kept or override.forbids(model)):
                await self._installer.retire(model, self.loaded)
                self._checked.pop(model, None)
                changes.retired.append(model)
        for number in on_disk:
            model = ModelId(name, number)
            if override.forbids(model) and not self.loaded.serves(model):
                self.loaded.record(VersionStatus(model, ModelState.UNLOADED))
        self._forget_others(name, tried)
        settled = [  # another version is served in their place: nobody waits for their old files
            each.id.version
            for each in self.loaded.statuses(name)
            if each.changed and each.id not in tried and not self.loaded.serves(each.id)
        ]
        self.loaded.forget(name, {*on_disk, *wanted.candidates}.difference(settled))

    def _extra(
        self, name: str, on_disk: Sequence[int], wanted: Wanted, override: Override
    ) -> list[int]:
        """The versions to serve in addition to the policy's.

        Those that a release divides requests between stay, whatever is published later.
        """
        numbers = set[int | None](wanted.extra)
        release, stage = self._settings(name).release, self.loaded.stage(name)
        if release is not None:
            numbers |= {release.to, release.old} | (stage.needed if stage is not None else set())
        extra = (number for number in on_disk if number in numbers)
        return [number for number in extra if not override.forbids(ModelId(name, number))]

    def _ordered(self, name: str, wanted: Wanted) -> Sequence[int]:
        """The candidates; of a model with weights or a release, the largest share comes first.

        At a restart, requests would otherwise get a version that was rolled back until the other
        one is loaded.
        """
        settings = self._settings(name)
        weights = settings.weights
        first, rest = wanted.candidates[: wanted.most], wanted.candidates[wanted.most :]
        if settings.release is not None:
            weights = release_weights(settings.release, self.loaded.stage(name), first)
        return (*sorted(first, key=lambda number: -weights.get(number, 0.0)), *rest)

    def _forget_others(self, name: str, tried: set[ModelId]) -> None:
        """Forget the failures of versions that are not wanted now."""
        for model in [each for each in self._tried if each.name == name and each not in tried]:
            del self._tried[model]

    async def _serve(self, model: ModelId, changes: Changes) -> Attempt:
        """Serve a version with its current settings, or with the earlier ones if that fails."""
        served = self.loaded.find_any(model)
        if served is None:
            return await self._attempt(model, changes)
        change = await self._change(model, served)
        if served.settings != self._settings(model.name):
            await self._attempt(model, changes)
            return Attempt.LOADED
        self._tried.pop(model, None)
        if change is None and not self._is_unready(model):
            self.loaded.clear_problem(model)  # the failed settings are no longer wanted
        elif change is not None:
            changes.failed.append(self.loaded.record_change(model, str(change)))
        return Attempt.LOADED

    def _is_unready(self, model: ModelId) -> bool:
        """Whether it is a handler that cannot work now; see `check_handlers`."""
        statuses = self.loaded.statuses(model.name)
        return any(each.id == model and each.state is ModelState.FAILED for each in statuses)

    async def _change(
        self, model: ModelId, served: LoadedModel | LoadedHandler
    ) -> VersionChanged | None:
        """How the files of a served version differ from those that are served, logged once.

        Files that are gone or cannot be listed are not a change: the version just stays.
        """
        stamp = (await self._state(model)).stamp
        before = self._checked.get(model)
        if before is not None and before.stamp == stamp:
            return before.change
        digest, change = served.digest, None
        if stamp:
            change = await in_thread(lambda: self._artifacts.change(model, digest))
        self._checked[model] = Checked(stamp, change)
        known = before.change if before is not None else None
        if change is not None and (known is None or known.found != change.found):
            LOG.error("version_changed", model=str(model), problem=str(change))
        elif change is None and known is not None:
            LOG.info("version_as_served", model=str(model))
        return change

    async def _state(self, model: ModelId) -> State:
        return await in_thread(lambda: self._artifacts.state(model))

    async def _attempt(self, model: ModelId, changes: Changes) -> Attempt:
        """Load a version, unless it failed before and nothing has changed since."""
        state = await self._state(model)
        settings = self._settings(model.name)
        tried = self._tried.get(model)
        if (
            tried is not None
            and (tried.state, tried.settings) == (state, settings)
            and time.monotonic() < tried.again_at
            and (tried.attempt is not Attempt.WAITING or tried.changes == self.loaded.changes)
        ):
            return tried.attempt
        attempt = await self._installer.install(model, self.loaded)
        if attempt is Attempt.LOADED:
            self._tried.pop(model, None)
            self._checked[model] = Checked(state.stamp, None)
            changes.loaded.append(model)
        else:
            again_s = AGAIN_S if attempt is Attempt.HINDERED else math.inf
            again_at = time.monotonic() + again_s
            self._tried[model] = Tried(attempt, state, settings, again_at, self.loaded.changes)
            changes.failed.extend(s for s in self.loaded.statuses(model.name) if s.id == model)
        return attempt
