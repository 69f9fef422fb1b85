"""The loaded models: the state of each version, and which model a request means.

Written by the lifecycle and read by the HTTP layer, both on the event loop.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from app.backends.selection import Selection
from app.codecs.base import Codec
from app.codecs.declared import DeclaredTensors
from app.errors import ModelNotFound, ModelNotReady, TorchlaneError
from app.handlers.contract import HandlerPool
from app.registry.model_settings import ModelSettings
from app.registry.releases import Stage, release_weights
from app.registry.weights import Split, split_of
from app.types import Device, ModelId, Serving
from models.choices import did_you_mean
from models.handlers import HandlerManifest
from models.manifest import Manifest

NOT_BEGUN = (
    "loading has not begun, because the application's lifespan has not run: a program that mounts "
    "this application has to run it, see docs/embedding.md"
)
UNREADABLE = "no model is loaded: the repository cannot be read"
MAX_LISTED = 10  # models in one sentence: a repository may contain hundreds


class ModelState(enum.Enum):
    """State of a version."""

    LOADING = "loading"
    READY = "ready"
    COLD = "cold"  # the next request loads it
    DRAINING = "draining"  # it answers accepted requests, then is unloaded
    UNLOADED = "unloaded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the HTTP layer knows about a loaded model.

    Attributes:
        fixed_bytes: bytes of an item's outputs, without those that have a free axis.
    """

    id: ModelId
    manifest: Manifest
    codec: Codec
    selection: Selection
    signed_by: str | None = None  # fingerprint of the trusted key
    settings: ModelSettings = field(default_factory=ModelSettings)
    max_batch_size: int = 1  # from the settings and its plan
    digest: str = ""  # SHA-256 of its manifest
    fixed_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Sum up the outputs, which each request would do otherwise."""
        fixed_bytes = sum(spec.item_bytes for spec in self.manifest.outputs if spec.is_fixed)
        object.__setattr__(self, "fixed_bytes", fixed_bytes)  # frozen

    def reads_as(self, other: LoadedModel) -> bool:
        """Whether its items are items of another version."""
        one, two = self.manifest, other.manifest
        return (one.inputs, one.codec) == (two.inputs, two.codec)


@dataclass(frozen=True, slots=True)
class LoadedHandler:
    """A loaded handler; see `LoadedModel` for the attributes that it has, too.

    Attributes:
        pool: its processes.
        tensors: its inputs and outputs; None: it declares none.
    """

    id: ModelId
    manifest: HandlerManifest
    pool: HandlerPool
    signed_by: str | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    digest: str = ""
    tensors: DeclaredTensors | None = None


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica as seen from one model; `serving` is None while it lacks the model."""

    name: str
    device: Device
    state: str
    serving: Serving | None


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """A version that the server has found.

    Attributes:
        problem: what is wrong with it, if anything.
        step: the current step while it loads.
        stage: the part of loading with this step: 'verify', 'load', 'warm' or 'prove'.
        progress: share of the steps that are done; None while their number is not known.
        changed: whether its files are no longer those that the server serves.
        since: when this state began, on `time.monotonic`.
    """

    id: ModelId
    state: ModelState
    problem: str | None = None
    step: str | None = None
    stage: str | None = None
    progress: float | None = None
    changed: bool = False
    since: float = field(default_factory=time.monotonic)


def list_names(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    texts = list(names)
    more = len(texts) - MAX_LISTED
    return ", ".join(texts[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "") or "none"


class LoadedModels:
    """Every model of the repository, and its served versions.

    Args:
        default_model: the model for requests without a name; None: the only model in the
            repository, which stays the default when others appear, as long as it exists.

    Attributes:
        changes: number of changes to the served versions, or to the stages of their releases.
        default_model: the current model for requests without a name; None if they must name one.
        has_handlers: whether any handler is loaded.
        has_streams: whether any loaded handler yields.
        has_weights: whether the versions of any loaded model or handler have weights, also of a
            release.
        has_begun: whether loading has begun, as it does with the application's lifespan.
        is_discovered: whether the repository has been read.
        is_unreadable: whether every attempt to read the repository has failed.
        unreadable_folders: for each model whose versions cannot be listed, what is wrong.
    """

    def __init__(self, default_model: str | None) -> None:
        self.changes = 0
        self.default_model = self._configured_default = default_model
        # The newest served version, or the one with the largest weight.
        self._current: dict[str, LoadedModel] = {}
        self._splits: dict[str, Split] = {}  # of the models with weights
        self.has_weights = False
        self._stages: Mapping[str, Stage] = {}  # how far releases are
        self._by_id: dict[ModelId, LoadedModel] = {}
        # Apart from models: whoever asks for a model never gets a handler.
        self._current_handlers: dict[str, LoadedHandler] = {}
        self._handlers: dict[ModelId, LoadedHandler] = {}
        self.has_handlers = self.has_streams = False
        self._statuses: dict[str, dict[ModelId, VersionStatus]] = {}
        self.has_begun = False
        self.is_discovered = False
        self.is_unreadable = False
        self.unreadable_folders: Mapping[str, str] = {}

    @property
    def keeps_default(self) -> bool:
        """Whether a model is the default only because it once was the only one."""
        several = len(self._statuses) > 1
        return several and self._configured_default is None and self.default_model is not None

    @property
    def default_problem(self) -> str | None:
        """What is wrong if the repository has models, but not the configured default one."""
        name, names = self._configured_default, self.names
        if name is None or not names or name in names:
            return None
        hint = did_you_mean(name, names, f"there are: {list_names(names)}")
        return f"TORCHLANE_DEFAULT_MODEL={name!r}: the repository has no such model; {hint}"

    @property
    def names(self) -> tuple[str, ...]:
        """Every model of the repository, loaded or not."""
        return tuple(dict.fromkeys((*self._statuses, *self.unreadable_folders)))

    def record_contents(
        self,
        newest: Iterable[ModelId],
        kept_default: str | None = None,
        unreadable: Mapping[str, str] | None = None,
    ) -> None:
        """Record the contents of the repository.

        Args:
            newest: the newest version of each model; new models load this one.
            kept_default: the default chosen by another process of this server.
            unreadable: the `unreadable_folders` of the class.
        """
        self.unreadable_folders = dict(unreadable or {})
        for model in newest:
            if model.name not in self._statuses:
                self.record(VersionStatus(model, ModelState.LOADING))
        self._choose_default(kept_default)
        self.is_discovered, self.is_unreadable = True, False

    def _choose_default(self, fallback: str | None = None) -> None:
        if self._configured_default is not None or self.default_model in self._statuses:
            return
        only = next(iter(self._statuses)) if len(self._statuses) == 1 else None
        self.default_model = fallback if fallback in self._statuses else only

    def record_unreadable(self) -> None:
        """Record that the repository could not be read."""
        self.is_unreadable = not self.is_discovered  # loaded models keep serving

    def record(self, status: VersionStatus) -> None:
        """Record the state of a version."""
        self._statuses.setdefault(status.id.name, {})[status.id] = status

    def record_step(self, model: ModelId, step: str, stage: str, progress: float) -> float:
        """Record a load's current step; returns the seconds since the load began.

        See `VersionStatus`. A late call does not change a version that is no longer loading.
        """
        status = self._statuses.get(model.name, {}).get(model)
        if status is None or status.state is not ModelState.LOADING:
            return 0.0
        self.record(replace(status, step=step, stage=stage, progress=progress))
        return time.monotonic() - status.since

    def clear_problem(self, model: ModelId) -> None:
        """Clear the problem of a version that is served."""
        status = self._statuses[model.name][model]
        if status.problem is not None:
            self.record(replace(status, problem=None, changed=False))

    def record_change(self, model: ModelId, problem: str) -> VersionStatus:
        """Record that a served version's files are no longer those that are served."""
        status = replace(self._statuses[model.name][model], problem=problem, changed=True)
        self.record(status)
        return status

    @property
    def changed_versions(self) -> int:
        """Number of versions whose files are no longer those that the server serves."""
        statuses = (each for versions in self._statuses.values() for each in versions.values())
        return sum(status.changed for status in statuses)

    def forget(self, name: str, there: Iterable[int]) -> None:
        """Forget versions that are gone, or are marked as loading but are not."""
        statuses, numbers = self._statuses.get(name, {}), set(there)
        for model, status in tuple(statuses.items()):
            waits = status.state is ModelState.LOADING
            if not self.serves(model) and (waits or model.version not in numbers):
                del statuses[model]
        if not statuses:
            self._statuses.pop(name, None)
            self._choose_default()

    def publish(self, model: LoadedModel) -> None:
        """Serve this version; without weights, requests without a version use the newest one."""
        self.change(model)
        self.record(VersionStatus(model.id.plain, ModelState.READY))

    def publish_handler(self, handler: LoadedHandler) -> None:
        """Serve this version of a handler, as `publish` does a model's."""
        self.change_handler(handler)
        self.record(VersionStatus(handler.id.plain, ModelState.READY))

    def change_handler(self, handler: LoadedHandler) -> None:
        """Replace the record of a served version of a handler."""
        self._handlers[handler.id.plain] = handler
        self._update_current(handler.id.name)

    def change(self, model: LoadedModel) -> None:
        """Replace the record of a served version."""
        self._by_id[model.id.plain] = model
        self._update_current(model.id.name)

    def withdraw(self, model: ModelId) -> None:
        """Stop serving a version; requests use the remaining ones."""
        self._by_id.pop(model, None)
        self._handlers.pop(model, None)
        self.record(VersionStatus(model, ModelState.DRAINING))
        self._update_current(model.name)

    def serves(self, model: ModelId) -> bool:
        """Whether the version is served, of a model or of a handler."""
        return model in self._by_id or model in self._handlers

    def find(self, model: ModelId) -> LoadedModel | None:
        """The loaded model of a version; None if the version is not served."""
        return self._by_id.get(model)

    def find_any(self, model: ModelId) -> LoadedModel | LoadedHandler | None:
        """The loaded model or handler of a version; None if the version is not served."""
        return self._by_id.get(model) or self._handlers.get(model)

    def current(self, name: str) -> LoadedModel | LoadedHandler | None:
        """The loaded model or handler for requests without a version, if any."""
        return self._current.get(name) or self._current_handlers.get(name)

    def versions(self, name: str) -> tuple[ModelId, ...]:
        """Every served version of a model or handler, newest first."""
        models = (model for model in (*self._by_id, *self._handlers) if model.name == name)
        return tuple(sorted(models, reverse=True))

    def set_stages(self, stages: Mapping[str, Stage]) -> None:
        """Divide requests as these stages of releases say, by model."""
        before, self._stages = self._stages, stages
        for name in before.keys() | stages.keys():
            if before.get(name) != stages.get(name):
                self._update_current(name)

    def stage(self, name: str) -> Stage | None:
        """How far a model's release is; None if it has none, or it has not begun."""
        return self._stages.get(name)

    def _update_current(self, name: str) -> None:
        self.changes += 1
        self.has_handlers = bool(self._handlers)
        self.has_streams = any(each.manifest.streams for each in self._handlers.values())
        self._choose_current(name)

    def _choose_current(self, name: str) -> None:
        self._current.pop(name, None)
        self._current_handlers.pop(name, None)
        self._splits.pop(name, None)
        served = self.divided(name)
        newest = self.find_any(ModelId(name, served[0])) if served else None
        if newest is not None:
            in_handler = isinstance(newest, LoadedHandler)
            settings = newest.settings
            weights = settings.weights
            if settings.release is not None:
                weights = release_weights(settings.release, self._stages.get(name), served)
            split = split_of(name, weights, settings.sticky, served)
            chosen = newest.id.plain
            if split is not None:
                self._splits[name] = split
                chosen = ModelId(name, next(iter(split.shares), chosen.version))
            if in_handler:
                self._current_handlers[name] = self._handlers[chosen]
            else:
                self._current[name] = self._by_id[chosen]
        self.has_weights = bool(self._splits)

    def divided(self, name: str) -> list[int]:
        """The served versions that requests can be divided between, newest first.

        Those of the newest version's kind, model or handler. A release to a version of another kind
        than the others waits, so it is left out.
        """
        versions = self.versions(name)
        newest = self.find_any(versions[0]) if versions else None
        release = None if newest is None else newest.settings.release
        if release is not None:
            versions = tuple(each for each in versions if each.version != release.to) or versions
        in_handler = bool(versions) and versions[0] in self._handlers
        return [
            each.version for each in self.versions(name) if (each in self._handlers) == in_handler
        ]

    def split(self, name: str) -> Split | None:
        """The shares of a model's or handler's versions; None if they have no weights."""
        return self._splits.get(name)

    def resolve(self, name: str | None = None, version: int | None = None) -> LoadedModel:
        """The loaded model for a request; without a name, the default model.

        Without a version it is the newest one, or that with the largest weight; a prediction with
        its body may then get another one, see `split`.

        Raises:
            ModelNotFound: if there is no such model, or the version is not loaded.
            ModelNotReady: if it is still loading, or could not be loaded.
        """
        name = name or self.default_model
        if name is None:
            raise self._no_default()
        current = self._current.get(name)
        if current is not None and (version is None or version == current.id.version):
            return current
        other = None if version is None else self._by_id.get(ModelId(name, version))
        if other is None and current is None:
            raise self._no_model(name)
        if other is None:
            numbers = ", ".join(str(model.version) for model in self.versions(name))
            raise ModelNotFound(f"version {version} of {name!r} is not loaded; loaded: {numbers}")
        return other

    def handler(self, name: str | None = None, version: int | None = None) -> LoadedHandler | None:
        """The loaded handler for a request, as `resolve` finds a model; None if there is none."""
        name = name or self.default_model
        if name is None:
            return None
        if version is None:
            return self._current_handlers.get(name)
        return self._handlers.get(ModelId(name, version))

    def tensors_of(
        self, name: str | None = None, version: int | None = None
    ) -> LoadedModel | LoadedHandler:
        """The loaded model for a request, or the handler if it declares its inputs and outputs.

        Raises:
            ModelNotFound, ModelNotReady: see `resolve`.
        """
        handler = self.handler(name, version)
        if handler is not None and handler.tensors is not None:
            return handler
        return self.resolve(name, version)

    def is_stream(self, name: str | None, version: str | None) -> bool:
        """Whether requests with this name and version in their path may get a stream."""
        number = int(version) if version is not None and version.isdigit() else None
        handler = self.handler(name, number)
        if handler is None:
            return False
        split = self._splits.get(handler.id.name) if number is None else None
        if split is None:
            return handler.manifest.streams
        versions = (self.handler(handler.id.name, each) for each in split.shares)
        return any(each is not None and each.manifest.streams for each in versions)

    def handlers(self) -> tuple[LoadedHandler, ...]:
        """Every loaded version of every handler."""
        return tuple(self._handlers.values())

    def current_handlers(self) -> tuple[LoadedHandler, ...]:
        """The version of each handler that requests without a version get."""
        return tuple(self._current_handlers.values())

    def missing(self, manifest: HandlerManifest) -> str | None:
        """Why a handler cannot work: a model that it calls is not served; None if all are."""
        for each in manifest.models:
            if each.version is not None and not self.serves(ModelId(each.name, each.version)):
                return f"it calls the model {each}, and this version is not served"
            if each.name not in self._current and each.name not in self._current_handlers:
                return f"it calls the model {each}, which is not served: {self.why_not(each.name)}"
        return None

    def models(self) -> tuple[LoadedModel, ...]:
        """Every loaded version."""
        return tuple(self._by_id.values())

    def get(self, name: str) -> LoadedModel | None:
        """The loaded model for requests without a version, if any."""
        return self._current.get(name)

    def statuses(self, name: str) -> tuple[VersionStatus, ...]:
        """Every known version of a model, newest first."""
        statuses = self._statuses.get(name, {})
        return tuple(statuses[model] for model in sorted(statuses, reverse=True))

    def why_not(self, name: str) -> TorchlaneError:
        """The error for a request for a model that is not loaded."""
        statuses = self.statuses(name)
        if not self.has_begun or self.is_unreadable:
            return ModelNotReady(UNREADABLE if self.has_begun else NOT_BEGUN)
        if not self.is_discovered or any(s.state is ModelState.LOADING for s in statuses):
            return ModelNotReady(f"model {name!r} is loading; try again shortly")
        if not statuses and name in self.unreadable_folders:
            return ModelNotReady(
                f"model {name!r} could not be loaded: its folder: {self.unreadable_folders[name]}"
            )
        if not statuses:
            what = f"there is no model {name!r}"
            if name == self._configured_default:
                what += ", which TORCHLANE_DEFAULT_MODEL names"
            return ModelNotFound(f"{what}; there are: {list_names(self.names)}")
        failure = next((each for each in statuses if each.state is ModelState.FAILED), None)
        if failure is None:
            return ModelNotFound(
                f"model {name!r} was unloaded; GET /models lists the loaded models"
            )
        return ModelNotReady(f"model {name!r} could not be loaded: {failure.problem}")

    def _no_model(self, name: str) -> TorchlaneError:
        """The error for a request for a model with this name, which is not loaded as a model."""
        if name not in self._current_handlers:
            return self.why_not(name)
        return ModelNotFound(
            f"{name!r} is a handler, not a model: only POST /models/{name}/predict, "
            f"POST /models/{name}/batch-predict and POST /predictions/{name} call it, and the Open "
            "Inference Protocol (/v2) if its class declares `inputs` and `outputs`"
        )

    def _no_default(self) -> TorchlaneError:
        """The error for a request without a model name if there is no default."""
        if not self.has_begun or self.is_unreadable:
            return ModelNotReady(UNREADABLE if self.has_begun else NOT_BEGUN)
        if not self.is_discovered:
            return ModelNotReady("the models are loading; try again shortly")
        if not self._statuses:
            return ModelNotFound("there are no models: the repository is empty")
        return ModelNotFound(
            "there are several models and no default: name one, as in "
            "/models/NAME/predict, or set TORCHLANE_DEFAULT_MODEL; "
            f"there are: {list_names(self.names)}"
        )

    def is_unloaded(self, name: str) -> bool:
        """Whether all its versions were unloaded on request."""
        states = {status.state for status in self._statuses.get(name, {}).values()}
        return bool(states) and states <= {ModelState.UNLOADED, ModelState.DRAINING}
