"""The model of a run: its artifact, devices, and backends, verified as in a server."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
import torch

from app.backends.base import Backend, close_safely
from app.backends.devices import find_devices
from app.backends.factory import TorchBackends
from app.backends.golden import Golden
from app.backends.selection import (
    Preference,
    Selection,
    planned_batch,
    select,
)
from app.backends.shape_caches import bound_caches
from app.bulk.errors import BulkError, UsageError
from app.codecs.base import Codec
from app.codecs.choose import codec_for
from app.engine.batch_runner import Contract
from app.errors import ArtifactInvalid
from app.registry.model_settings import ModelSettings
from app.registry.repository import Artifact, HandlerArtifact, Repository
from app.serving.placement import Placement
from app.serving.version_policy import VersionPolicy
from app.types import Device, ModelId, Serving
from models.codec_specs import TextCodecSpec
from models.manifest import Manifest
from models.padding import padding_of
from models.plan import DevicePlan, Form, Plan, Step, batch_sizes, extend_steps
from models.runtimes.forms import processor_of
from models.system.resources import usable_cores

LOG = structlog.get_logger(__name__)
CLOSE_ENOUGH = 1.05  # times the least time per item: the largest batch within this is chosen


@dataclass(frozen=True, slots=True)
class Choices:
    """A user's choices for a model; None for the artifact's choice.

    Attributes:
        devices: as TORCHLANE_DEVICES.
        replicas_per_device: as the setting.
        threads: threads of each replica on the CPU.
        settings: variant, precision and the largest batch.
        batch: items of a forward.
        steps: form for each batch size, from an earlier part of the run.
    """

    devices: str
    replicas_per_device: int | None
    threads: int | None
    settings: ModelSettings
    batch: int | None = None
    steps: tuple[Step, ...] = ()


class BulkModel:
    """One version of a model, which creates its backends.

    Raises:
        UsageError: if a device is missing.
        ArtifactInvalid: if it has no such variant.
    """

    def __init__(self, artifact: Artifact, choices: Choices) -> None:
        self.manifest = artifact.manifest
        self.files = codec_files(artifact)
        self.codec: Codec = codec_for(self.manifest, self.files.__getitem__)
        self._placement = _placement(artifact, choices)
        kinds = {device.kind for device in self._placement.devices}
        settings = choices.settings
        preference = Preference(settings.variant, settings.precision)
        selection = select(self.manifest, preference, kinds)
        most = settings.largest_batch(planned_batch(self.manifest, selection.precision, kinds))
        most = choices.batch or most
        self._selection = dataclasses.replace(selection, max_batch_size=most)
        self.batch = choices.batch or _best_batch(self.manifest, self._selection, kinds, most)
        self.artifact = self._following(artifact, choices.steps, most)
        self._golden = Golden(self.manifest, selection.tolerance)
        bound_caches([self.manifest], os.environ)
        backends = TorchBackends(self._placement.devices, most, self._placement.threads)
        self._make = backends.make
        self._lock = threading.Lock()
        outputs = tuple(spec.name for spec in self.manifest.outputs)
        padding = padding_of(self.manifest.inputs, self.manifest.outputs)
        self.contract = Contract(outputs, self._golden.probe, self.codec.finish, padding)
        self.kinds = kinds
        self.steps: list[dict[str, object]] = []

    @property
    def label(self) -> str:
        """The selected variant and precision."""
        return self._selection.label

    @property
    def devices(self) -> Sequence[Device]:
        """One for each replica."""
        return self._placement.devices

    @property
    def threads(self) -> int:
        """Threads of each replica on the CPU."""
        return self._placement.threads

    def begin(self, replica: int) -> None:
        """Call this first in the thread of a replica."""
        self._placement.begin(replica)()

    def backend(self, replica: int) -> Backend:
        """Load a backend, warm it, and replay the golden examples on it.

        Raises:
            ArtifactInvalid: if an answer is wrong.
            BackendError: if there is no answer.
        """
        device, artifact = self._placement.devices[replica], self.artifact
        backend = self._make(
            artifact.folder, artifact.manifest, artifact.digest, self._selection, device
        )
        try:
            with self._lock:  # one at a time, because forms may be timed
                backend.load()
                sizes = batch_sizes(self.batch)
                largest = backend.warm_up(self._golden.batches(sizes)).largest
                proof_sizes = [size for size in sizes if size <= largest or size == self.batch]
                self._golden.replay(backend, proof_sizes)
                self.steps = self.steps or _steps_as_json(backend.serving())
        except BaseException:
            close_safely(backend)
            raise
        return backend

    def _following(self, artifact: Artifact, steps: tuple[Step, ...], most: int) -> Artifact:
        """The artifact, with the plan that an earlier part of the run followed."""
        if not steps:
            return artifact
        kind = self._placement.devices[0].kind
        here = processor_of(torch.device(str(self._placement.devices[0])), self.threads)
        plan = DevicePlan(
            processor=here,
            torch_version=torch.__version__,
            times=(),
            steps={self._selection.precision: extend_steps(steps, most)},
        )
        others = artifact.manifest.plan.devices if artifact.manifest.plan else ()
        devices = (plan, *(each for each in others if each.processor.kind != kind))
        new_plan = Plan(precision=self._selection.precision, devices=devices)
        manifest = artifact.manifest.model_copy(update={"plan": new_plan})
        return dataclasses.replace(artifact, manifest=manifest)


def open_artifact(
    repository: Repository, policy: VersionPolicy, name: str, version: int | None
) -> Artifact | HandlerArtifact:
    """Open a version of a model or handler; the digest of every file is checked.

    The policy chooses the version if none is given.

    Raises:
        UsageError: if there is no such version; the message lists those that exist.
        BulkError: if it is damaged.
    """
    try:
        contents = repository.scan()
    except OSError as error:
        raise UsageError(f"{repository.root} cannot be read: {error.strerror}") from error
    versions = contents.versions
    if name not in versions:
        if name in contents.unreadable:
            raise UsageError(f"{repository.root / name}: {contents.unreadable[name]}")
        if not versions:
            raise UsageError(repository.why_empty())
        raise UsageError(f"{repository.root} has no model {name!r}; it has {', '.join(versions)}")
    candidates = (
        (version,) if version is not None else policy.wanted(name, versions[name]).candidates
    )
    if not candidates or candidates[0] not in versions[name]:
        there = ", ".join(map(str, versions[name]))
        version_text = version if version is not None else "that TORCHLANE_VERSIONS allows"
        raise UsageError(f"{name} has no version {version_text}; it has {there}")
    try:
        return repository.open_any(ModelId(name, candidates[0]))
    except ArtifactInvalid as error:
        raise BulkError(str(error)) from error


def steps_of(steps: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    """The steps of a manifest; empty if there was no choice."""
    if any(each["up_to"] is None for each in steps):
        return ()
    return tuple(Step.model_validate(each) for each in steps)


def _steps_as_json(serving: Serving) -> list[dict[str, object]]:
    """The steps of a backend, in a manifest's form."""
    optimized_suffix = str(Form(variant="x", optimized=True)).removeprefix("x")
    return [
        {
            "up_to": step.up_to,
            "form": {
                "variant": step.form.removesuffix(optimized_suffix),
                "optimized": step.form.endswith(optimized_suffix),
            },
        }
        for step in serving.steps
    ]


def codec_files(artifact: Artifact) -> Mapping[str, bytes]:
    """The files of an artifact that its codec needs."""
    codec = artifact.manifest.codec
    names = [codec.tokenizer] if isinstance(codec, TextCodecSpec) else []
    return {name: artifact.read(name) for name in names}


def _placement(artifact: Artifact, choices: Choices) -> Placement:
    """The replicas: on CPUs one per core with one thread, as no event loop needs a core."""
    try:
        devices = find_devices(choices.devices, choices.replicas_per_device or 1)
    except ValueError as error:
        raise UsageError(str(error)) from error
    cores = usable_cores()
    if choices.devices == "auto" and {device.kind for device in devices} == {"cpu"}:
        replicas = choices.replicas_per_device or cores
        if choices.threads:
            replicas = choices.replicas_per_device or max(1, cores // choices.threads)
        devices = (Device("cpu"),) * replicas
    on_cpu = sum(device.kind == "cpu" for device in devices)
    return Placement(devices, choices.threads or max(1, cores // max(1, on_cpu)))


def _best_batch(manifest: Manifest, selection: Selection, kinds: Collection[str], most: int) -> int:
    """The batch size with the least time per item in export's measurements, else the largest."""
    plans = manifest.plan.devices if manifest.plan else ()
    per_item: dict[int, float] = {}
    for plan in plans:
        if plan.processor.kind not in kinds:
            continue
        for times in plan.times:
            if times.form in selection.candidates:
                for size, median_us in zip(times.batch_sizes, times.median_us, strict=True):
                    if size <= most:
                        item_us = median_us / size
                        per_item[size] = min(per_item.get(size, item_us), item_us)
    least = min(per_item.values(), default=0.0)
    return max((s for s, us in per_item.items() if us <= least * CLOSE_ENOUGH), default=most)
