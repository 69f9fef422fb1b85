"""What is loaded: how far each version has come, and which model a request means.

Written by the life cycle, read by the HTTP layer; both on the event loop.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.backends.selection import Selection
from app.codecs.base import Codec
from app.errors import ModelNotFound, ModelNotReady, TorchlaneError
from app.types import Device, ModelId, Serving
from models.manifest import Manifest

FALLBACK_DEFAULT = "digits"


class ModelState(enum.Enum):
    """How far a version has come."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the HTTP layer may know of a model that was loaded."""

    id: ModelId
    manifest: Manifest
    codec: Codec
    selection: Selection


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica as seen from one model; `serving` is None while it does not have it."""

    name: str
    device: Device
    state: str
    serving: Serving | None


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """One version that was looked at, and what is wrong with it, if anything."""

    id: ModelId
    state: ModelState
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the process should get traffic, and if not, why."""

    ready: bool
    reasons: tuple[str, ...]


class LoadedModels:
    """Every model of the repository, and the version of it that is served.

    Args:
        default_model: what a request without a name means; None: the only model, else `digits`.
    """

    def __init__(self, default_model: str | None) -> None:
        self._wanted_default = default_model
        self._loaded: dict[str, LoadedModel] = {}
        self._statuses: dict[str, dict[ModelId, VersionStatus]] = {}
        self._discovered = False
        self._unreadable = False

    @property
    def default_model(self) -> str:
        """What a request without a model's name means."""
        if self._wanted_default is not None:
            return self._wanted_default
        return next(iter(self._statuses)) if len(self._statuses) == 1 else FALLBACK_DEFAULT

    @property
    def names(self) -> tuple[str, ...]:
        """Every model of the repository, loaded or not."""
        return tuple(self._statuses)

    def discovered(self, newest: Iterable[ModelId]) -> None:
        """The repository has been read; these will be loaded."""
        for model in newest:
            self.record(VersionStatus(model, ModelState.LOADING))
        self._discovered = True

    def unreadable(self) -> None:
        """The repository could not be read at all."""
        self._unreadable = True

    def record(self, status: VersionStatus) -> None:
        """How far a version has come, or why it failed."""
        self._statuses.setdefault(status.id.name, {})[status.id] = status

    def publish(self, model: LoadedModel) -> None:
        """Serve this version from now on."""
        self._loaded[model.id.name] = model
        self.record(VersionStatus(model.id, ModelState.READY))

    def resolve(self, name: str | None = None, version: int | None = None) -> LoadedModel:
        """The loaded model that a request means; without a name the default one.

        Raises:
            ModelNotFound: if there is no such model, or its version is not the one that is loaded.
            ModelNotReady: if it is still loading, or could not be loaded.
        """
        name = name or self.default_model
        loaded = self._loaded.get(name)
        if loaded is None:
            raise self.why_not(name)
        if version not in (None, loaded.id.version):
            raise ModelNotFound(
                f"version {version} of {name!r} is not loaded; version {loaded.id.version} is"
            )
        return loaded

    def models(self) -> tuple[LoadedModel, ...]:
        """Everything that is loaded."""
        return tuple(self._loaded.values())

    def get(self, name: str) -> LoadedModel | None:
        """The loaded version of a model, if there is one."""
        return self._loaded.get(name)

    def statuses(self, name: str) -> tuple[VersionStatus, ...]:
        """Every version of a model that was looked at, newest first."""
        return tuple(self._statuses.get(name, {}).values())

    def why_not(self, name: str) -> TorchlaneError:
        """What to tell somebody who asks for a model that is not loaded."""
        statuses = self.statuses(name)
        if self._unreadable:
            return ModelNotReady("no model is loaded: the repository cannot be read")
        if not self._discovered or any(s.state is ModelState.LOADING for s in statuses):
            return ModelNotReady(f"model {name!r} is loading; try again shortly")
        if not statuses:
            known = ", ".join(self.names) or "none"
            return ModelNotFound(f"there is no model {name!r}; there are: {known}")
        return ModelNotReady(f"model {name!r} could not be loaded: {statuses[0].problem}")

    def readiness(self, serves: Callable[[ModelId], bool]) -> Readiness:
        """Ready: every model in the repository has a good version that some replica serves."""
        if self._unreadable:
            return Readiness(False, ("the repository cannot be read; the log has the reason",))
        if not self._discovered:
            return Readiness(False, ("the repository has not been read yet",))
        reasons = [str(self.why_not(name)) for name in self.names if name not in self._loaded]
        if not self.names:
            reasons.append("the repository holds no model; export one and start again")
        elif self.default_model not in self.names:
            reasons.append(f"the default model {self.default_model!r} is not in the repository")
        reasons += [
            f"no replica of {loaded.id} works" for loaded in self.models() if not serves(loaded.id)
        ]
        return Readiness(not reasons, tuple(reasons))
