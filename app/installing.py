"""One version, from its files to serving and back: verify, load, replay, warm, publish, retire."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from app.backends.base import Backend, Between, close_safely
from app.backends.golden import Golden
from app.backends.selection import NotAsAskedFor, Preference, Selection, select, stages
from app.codecs.choose import codec_for
from app.engine.engine import Engine
from app.engine.handover import in_thread, tell
from app.engine.isolation import Contract
from app.engine.replicas import Replica
from app.errors import (
    ArtifactInvalid,
    OutOfMemory,
    ReplicaError,
    ReplicaHangs,
    VariantUnusable,
)
from app.loaded import LoadedModel, LoadedModels, ModelState, VersionStatus
from app.metrics import Metrics
from app.repository.store import Artifact, Repository
from app.types import Arrays, Device, ModelId
from app.upkeep import Maker, Upkeep
from models.plan import batch_sizes

LOG = structlog.get_logger(__name__)
PROGRESS_S = 2.0
FAILED_TO_LOAD = "it could not be loaded or run; the log has the reason"

# Makes a selection's backend on one device; handed in by main, so that no torch is known here.
BackendFactory = Callable[[Artifact, Selection, Device], Backend]


class Attempt(enum.Enum):
    """What became of a version that was to be loaded.

    After FAILED the next older one gets its turn; after REFUSED it does not: the version is good,
    but lacks what the settings pin, or this machine cannot run that. An older one would be a silent
    step back. HINDERED is FAILED for a reason that may pass: no memory, a replica that broke.
    """

    LOADED = enum.auto()
    FAILED = enum.auto()
    HINDERED = enum.auto()
    REFUSED = enum.auto()


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a version is served.

    Attributes:
        preference: which variant or precision.
        max_batch_size: the largest batch, hence which buckets are warmed.
    """

    preference: Preference
    max_batch_size: int


class Installer:
    """Installs and retires versions.

    Args:
        repository: where their files are.
        engine: where they are published.
        upkeep: what keeps them on the replicas.
        metrics: where it is counted what became of versions.
        make_backend: makes the backend of what was selected, on one device.
        choice: what of a version is served.
    """

    def __init__(
        self,
        repository: Repository,
        engine: Engine,
        upkeep: Upkeep,
        metrics: Metrics,
        make_backend: BackendFactory,
        choice: Choice,
    ) -> None:
        self._repository = repository
        self._engine = engine
        self._upkeep = upkeep
        self._metrics = metrics
        self._make_backend = make_backend
        self._choice = choice
        self._buckets = batch_sizes(choice.max_batch_size)

    async def install(self, model: ModelId, loaded: LoadedModels) -> Attempt:
        """Serve a version, if it proves itself; whatever serves beside it goes on meanwhile.

        Args:
            model: which.
            loaded: where it is recorded how far it has come, and published at last.
        """
        began = time.monotonic()
        loaded.record(VersionStatus(model, ModelState.LOADING, step="checking files"))
        try:
            artifact = await in_thread(lambda: self._repository.open(model), _let_go)
            selection = self._select(artifact)
            progress = _Progress(model, loaded)
            golden = Golden(artifact.manifest, selection.tolerance)
            batch_s: dict[str, dict[int, float]] = {}
            maker = self._maker(artifact, selection, golden, batch_s, progress)
            await self._upkeep.install_everywhere(model, maker)
        except Exception as error:
            # Only ArtifactInvalid is written for clients; torch's own words hold paths and code.
            known = isinstance(error, ArtifactInvalid)
            problem = str(error) if known else FAILED_TO_LOAD
            loaded.record(VersionStatus(model, ModelState.FAILED, problem))
            LOG.error("model_not_loaded", model=str(model), problem=str(error), exc_info=not known)
            self._metrics.load_ended(model, "failed")
            await self._upkeep.remove_everywhere(model)
            return _attempt(error)
        manifest = artifact.manifest
        codec = codec_for(manifest)
        outputs = tuple(spec.name for spec in manifest.outputs)
        contract = Contract(outputs, golden.probe, codec.finish)
        identity = f"{artifact.digest}:{selection.label}"
        largest = min(max(sizes) for sizes in batch_s.values())
        self._engine.publish(model, identity, contract, batch_s, largest)
        loaded.publish(LoadedModel(model, manifest, codec, selection, artifact.signed_by))
        count = sum(replica.serves(model) for replica in self._upkeep.replicas)
        LOG.info(
            "model_loaded",
            model=str(model),
            serves=selection.label,
            replicas=count,
            max_batch_size=largest,
            seconds=round(time.monotonic() - began, 1),
        )
        self._metrics.load_ended(model, "loaded")
        return Attempt.LOADED

    async def retire(self, model: ModelId, loaded: LoadedModels) -> None:
        """Serve a version no more: what it has accepted is answered, then its memory is free."""
        loaded.withdraw(model)
        await self._engine.retire(model)
        await self._upkeep.remove_everywhere(model)
        loaded.record(VersionStatus(model, ModelState.UNLOADED))
        LOG.info("model_retired", model=str(model))
        self._metrics.load_ended(model, "retired")

    def _select(self, artifact: Artifact) -> Selection:
        kinds = {replica.device.kind for replica in self._upkeep.replicas}
        selection = select(artifact.manifest, self._choice.preference, kinds)
        wanted = self._choice.preference.precision
        if wanted not in (None, selection.precision):
            LOG.warning(
                "precision_not_there",
                model=str(artifact.id),
                wanted=wanted,
                serves=selection.precision,
                instead="the model's own plan; export it with that variant to change this",
            )
        return selection

    def _maker(
        self,
        artifact: Artifact,
        selection: Selection,
        golden: Golden,
        batch_s: dict[str, dict[int, float]],
        progress: _Progress,
    ) -> Maker:
        """How a replica gets a backend that has proved itself.

        Args:
            artifact: what is loaded.
            selection: in which form.
            golden: its examples.
            batch_s: replica -> batch size -> seconds, filled with what the replay took.
            progress: told of each step.
        """
        places = places_of(selection, self._upkeep.replicas)

        def load(replica: str) -> Backend:
            progress.reached(f"reading weights for {replica}")
            first, *later = places[replica]
            chosen = dataclasses.replace(selection, devices=(first, *later) if later else ())
            backend = self._make_backend(artifact, chosen, first)
            try:
                backend.load()
            except BaseException:
                close_safely(backend)
                raise
            return backend

        def prove(replica: str, backend: Backend, between: Between) -> None:
            def batches() -> Iterator[Arrays]:
                for size in self._buckets:
                    progress.reached(f"warming batches of {size} on {replica}")
                    yield from golden.batches([size])

            largest = backend.warm_up(batches(), between)
            progress.reached(f"replaying examples on {replica}")
            sizes = [size for size in self._buckets if size <= largest]
            batch_s[replica] = golden.replay(backend, sizes, between)  # by what warming has chosen

        def installed(replica: str) -> None:  # it may be late, or a rebuilt one
            self._engine.measured(artifact.id, replica, batch_s[replica])

        return Maker(places, load, prove, golden.probe, installed)


class _Progress:
    """What a load is at, told from whatever thread works at it.

    Made on the event loop, which alone writes what is shown. The log gets a line at most every
    PROGRESS_S seconds.
    """

    def __init__(self, model: ModelId, loaded: LoadedModels) -> None:
        self._model = model
        self._loaded = loaded
        self._loop = asyncio.get_running_loop()
        self._logged_s = 0.0

    def reached(self, step: str) -> None:
        """The next step begins."""
        tell(self._loop, self._show, step)

    def _show(self, step: str) -> None:
        seconds = self._loaded.reached(self._model, step)
        if seconds >= self._logged_s + PROGRESS_S:
            self._logged_s = seconds
            LOG.info("model_loading", model=str(self._model), step=step, seconds=round(seconds, 1))


def places_of(selection: Selection, replicas: Sequence[Replica]) -> dict[str, tuple[Device, ...]]:
    """The replicas that a model is installed on, and the devices that each of them uses for it.

    A model in stages uses those of as many replicas, and is installed on the first of them; where
    there are too few, each replica runs all stages by itself.
    """
    size, rest = stages(selection), list(replicas)
    places: dict[str, tuple[Device, ...]] = {}
    while group := _of_different_devices(rest, size):
        places[group[0].name] = tuple(each.device for each in group)
        rest = [each for each in rest if each not in group]
    return places or {each.name: (each.device,) for each in replicas}


def _of_different_devices(replicas: Sequence[Replica], size: int) -> list[Replica]:
    """The first so many that have a device each; CPU replicas are one each. Empty: too few."""
    group: list[Replica] = []
    for each in replicas:
        taken = {one.device for one in group if one.device.kind == "cuda"}
        if each.device not in taken and len(group) < size:
            group.append(each)
    return group if len(group) == size else []


def _attempt(error: Exception) -> Attempt:
    if isinstance(error, NotAsAskedFor | VariantUnusable):
        return Attempt.REFUSED
    passing = isinstance(error, ReplicaError | OutOfMemory | OSError)
    return Attempt.HINDERED if passing and not isinstance(error, ReplicaHangs) else Attempt.FAILED


def _let_go(_: Artifact) -> None:
    """An artifact that nobody waits for holds nothing."""
