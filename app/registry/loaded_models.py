"""What is loaded: how far each version has come, and which model a request means.

Written by the life cycle, read by the HTTP layer; both on the event loop.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from app.backends.selection import Selection
from app.codecs.base import Codec
from app.errors import ModelNotFound, ModelNotReady, TorchlaneError
from app.registry.model_settings import ModelSettings
from app.types import Device, ModelId, Serving
from models.manifest import Manifest

MOST_NAMED = 10  # models in one sentence: a repository may hold hundreds


class ModelState(enum.Enum):
    """How far a version has come."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"  # it answers what it has accepted, and leaves
    UNLOADED = "unloaded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the HTTP layer may know of a model that was loaded."""

    id: ModelId
    manifest: Manifest
    codec: Codec
    selection: Selection
    signed_by: str | None = None  # fingerprint of the trusted key
    settings: ModelSettings = field(default_factory=ModelSettings)
    max_batch_size: int = 1  # the largest, as the settings and its plan say


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica as seen from one model; `serving` is None while it does not have it."""

    name: str
    device: Device
    state: str
    serving: Serving | None


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """One version that was looked at.

    Attributes:
        problem: what is wrong with it, if anything.
        step: what is being done while it loads.
        since: when it came into its state, on `time.monotonic`.
    """

    id: ModelId
    state: ModelState
    problem: str | None = None
    step: str | None = None
    since: float = field(default_factory=time.monotonic)


def listed(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    found = list(names)
    more = len(found) - MOST_NAMED
    return ", ".join(found[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "") or "none"


class LoadedModels:
    """Every model of the repository, and the versions of it that are served.

    Args:
        default_model: what a request without a name means; None: the only model that there is. It
            stays the default when others appear, as long as it is there.

    Attributes:
        changes: how often what is served has changed.
        default_model: what a request without a name means now; None: it has to name a model.
        is_discovered: whether the repository has been read.
        is_unreadable: whether it could not be read from the start.
    """

    def __init__(self, default_model: str | None) -> None:
        self.changes = 0
        self.default_model = self._configured = default_model
        self._current: dict[str, LoadedModel] = {}  # the newest that is served
        self._served: dict[ModelId, LoadedModel] = {}
        self._statuses: dict[str, dict[ModelId, VersionStatus]] = {}
        self.is_discovered = False
        self.is_unreadable = False

    @property
    def keeps_default(self) -> bool:
        """Whether a model is the default only because it was the only one before."""
        several = len(self._statuses) > 1
        return several and self._configured is None and self.default_model is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Every model of the repository, loaded or not."""
        return tuple(self._statuses)

    def discovered(self, newest: Iterable[ModelId], kept_default: str | None = None) -> None:
        """The repository has been read.

        Args:
            newest: the newest version of each of its models; of new models these will be loaded.
            kept_default: the only model that another process of this server found at first.
        """
        for model in newest:
            if model.name not in self._statuses:
                self.record(VersionStatus(model, ModelState.LOADING))
        self._choose_default(kept_default)
        self.is_discovered, self.is_unreadable = True, False

    def _choose_default(self, kept: str | None = None) -> None:
        if self._configured is not None or self.default_model in self._statuses:
            return
        only = next(iter(self._statuses)) if len(self._statuses) == 1 else None
        self.default_model = kept if kept in self._statuses else only

    def unreadable(self) -> None:
        """The repository could not be read at all."""
        self.is_unreadable = not self.is_discovered  # what is loaded goes on serving

    def record(self, status: VersionStatus) -> None:
        """How far a version has come, or why it failed."""
        self._statuses.setdefault(status.id.name, {})[status.id] = status

    def reached(self, model: ModelId, step: str) -> float:
        """A load has reached a step; returns for how many seconds it has gone on.

        It may be told late: a version that is no longer being loaded stays as it is.
        """
        status = self._statuses.get(model.name, {}).get(model)
        if status is None or status.state is not ModelState.LOADING:
            return 0.0
        self.record(replace(status, step=step))
        return time.monotonic() - status.since

    def mended(self, model: ModelId) -> None:
        """A version that is served has no problem any more."""
        status = self._statuses[model.name][model]
        if status.problem is not None:
            self.record(replace(status, problem=None))

    def forget(self, name: str, there: Iterable[int]) -> None:
        """Forget versions that are not there any more, or were thought to be loaded and are not."""
        statuses, numbers = self._statuses.get(name, {}), set(there)
        for model, status in tuple(statuses.items()):
            waits = status.state is ModelState.LOADING
            if model not in self._served and (waits or model.version not in numbers):
                del statuses[model]
        if not statuses:
            self._statuses.pop(name, None)
            self._choose_default()

    def publish(self, model: LoadedModel) -> None:
        """Serve this version from now on; requests that name none mean the newest."""
        self.change(model)
        self.record(VersionStatus(model.id.plain, ModelState.READY))

    def change(self, model: LoadedModel) -> None:
        """Something about a version is another thing from now on."""
        self._served[model.id.plain] = model
        self._changed(model.id.name)

    def withdraw(self, model: ModelId) -> None:
        """Serve this version no more: requests mean the newest of those that are left."""
        self._served.pop(model, None)
        self.record(VersionStatus(model, ModelState.DRAINING))
        self._changed(model.name)

    def serves(self, model: ModelId) -> bool:
        """Whether the version is served."""
        return model in self._served

    def served(self, model: ModelId) -> LoadedModel | None:
        """What is known of a version that is served."""
        return self._served.get(model)

    def versions(self, name: str) -> tuple[ModelId, ...]:
        """Every version of a model that is served, newest first."""
        found = (model for model in self._served if model.name == name)
        return tuple(sorted(found, reverse=True))

    def _changed(self, name: str) -> None:
        self.changes += 1
        left = self.versions(name)
        if left:
            self._current[name] = self._served[left[0]]
        else:
            self._current.pop(name, None)

    def resolve(self, name: str | None = None, version: int | None = None) -> LoadedModel:
        """The loaded model that a request means; without a name the default one.

        Raises:
            ModelNotFound: if there is no such model, or this version of it is not loaded.
            ModelNotReady: if it is still loading, or could not be loaded.
        """
        name = name or self.default_model
        if name is None:
            raise self._no_default()
        loaded = self._current.get(name)
        if loaded is None:
            raise self.why_not(name)
        if version is None or version == loaded.id.version:
            return loaded
        other = self._served.get(ModelId(name, version))
        if other is None:
            numbers = ", ".join(str(model.version) for model in self.versions(name))
            raise ModelNotFound(f"version {version} of {name!r} is not loaded; loaded: {numbers}")
        return other

    def models(self) -> tuple[LoadedModel, ...]:
        """Everything that is loaded."""
        return tuple(self._served.values())

    def get(self, name: str) -> LoadedModel | None:
        """What a request for the model means that names no version, if anything."""
        return self._current.get(name)

    def statuses(self, name: str) -> tuple[VersionStatus, ...]:
        """Every version of a model that was looked at, newest first."""
        statuses = self._statuses.get(name, {})
        return tuple(statuses[model] for model in sorted(statuses, reverse=True))

    def why_not(self, name: str) -> TorchlaneError:
        """What to tell somebody who asks for a model that is not loaded."""
        statuses = self.statuses(name)
        if self.is_unreadable:
            return ModelNotReady("no model is loaded: the repository cannot be read")
        if not self.is_discovered or any(s.state is ModelState.LOADING for s in statuses):
            return ModelNotReady(f"model {name!r} is loading; try again shortly")
        if not statuses:
            what = f"there is no model {name!r}"
            if name == self._configured:
                what += ", which TORCHLANE_DEFAULT_MODEL names"
            return ModelNotFound(f"{what}; there are: {listed(self.names)}")
        failed = next((each for each in statuses if each.state is ModelState.FAILED), None)
        if failed is None:
            return ModelNotFound(f"model {name!r} was unloaded; GET /models lists what is loaded")
        return ModelNotReady(f"model {name!r} could not be loaded: {failed.problem}")

    def _no_default(self) -> TorchlaneError:
        """What to tell somebody who names no model where it is not known which one is meant."""
        if self.is_unreadable:
            return ModelNotReady("no model is loaded: the repository cannot be read")
        if not self.is_discovered:
            return ModelNotReady("the models are loading; try again shortly")
        if not self._statuses:
            return ModelNotFound("there is no model: the repository is empty")
        return ModelNotFound(
            "there are several models and none is the default: name one, as in "
            "/models/NAME/predict, or set TORCHLANE_DEFAULT_MODEL; "
            f"there are: {listed(self.names)}"
        )

    def is_unloaded(self, name: str) -> bool:
        """Whether somebody asked for no version of it to be served."""
        states = {status.state for status in self._statuses.get(name, {}).values()}
        return bool(states) and states <= {ModelState.UNLOADED, ModelState.DRAINING}
