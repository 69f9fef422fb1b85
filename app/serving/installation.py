"""How to install a version: in which form, on which replicas, at which batch sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import structlog

from app.backends.golden import Golden
from app.backends.selection import Preference, Selection, planned_batch, select, stages
from app.engine.batch_policy import BatchLimits
from app.engine.batch_runner import Finish, Layout
from app.engine.queue import ModelLimits
from app.engine.replica import Replica
from app.errors import ArtifactInvalid
from app.registry.model_settings import ModelSettings
from app.registry.repository import Artifact
from app.types import Device
from models.tensors import TensorSpec

LOG = structlog.get_logger(__name__)
# How long a batch may grow while every turn of the event loop reads more items: long enough to read
# a wave of 32 requests, and the longest delay that steady single requests can cause.
GATHER_S = 0.002
FAILED_TO_LOAD = "the model could not be loaded or run; the log has the reason"


def problem_of(error: Exception) -> str:
    """What clients are told about a version that could not be loaded."""
    # Only ArtifactInvalid is written for clients; torch's own messages contain paths and code.
    return str(error) if isinstance(error, ArtifactInvalid) else FAILED_TO_LOAD


def limits_of(settings: ModelSettings, max_batch_size: int) -> ModelLimits:
    """A model's settings as limits for the engine."""
    return ModelLimits(
        BatchLimits(max_batch_size, settings.batch_wait_s, GATHER_S),
        settings.queue_limit_items,
        settings.queue_limit_bytes,
        settings.cache,
    )


def layout_of(outputs: Sequence[TensorSpec], finish: Finish) -> Layout:
    """The layout of an item's answer: dtypes after `finish`, and sizes."""
    ones = {
        spec.name: np.zeros([max(1, size) for size in spec.shape], spec.dtype) for spec in outputs
    }
    finished = finish(ones)
    return {spec.name: (finished[spec.name].dtype.str, spec.item_shape) for spec in outputs}


@dataclass(frozen=True, slots=True)
class Installation:
    """How to install a version.

    Attributes:
        artifact: the version's artifact.
        selection: its forms.
        golden: its golden examples.
        places: names of the replicas to install on, with the devices that each uses.
        max_batch_size: the largest batch size to warm up, if it is worth running.
    """

    artifact: Artifact
    selection: Selection
    golden: Golden
    places: Mapping[str, tuple[Device, ...]]
    max_batch_size: int


def planned(
    artifact: Artifact, settings: ModelSettings, replicas: Sequence[Replica]
) -> Installation:
    """Plan the installation of a version from its model's settings.

    Args:
        artifact: the version's artifact.
        settings: the model's settings.
        replicas: all replicas.

    Raises:
        PinnedVariantMissing: if the artifact lacks the pinned variant.
    """
    replicas = _replicas_for(artifact.id.name, settings, replicas)
    kinds = {replica.device.kind for replica in replicas}
    manifest, wanted = artifact.manifest, settings.precision
    preference = Preference(settings.variant, wanted, settings.pinned_by_file)
    selection = select(manifest, preference, kinds)
    if wanted not in (None, selection.precision):
        LOG.warning(
            "precision_not_there",
            model=str(artifact.id),
            wanted=wanted,
            serves=selection.precision,
            instead="the model's own plan; export it with that variant to change this",
        )
    most = settings.largest_batch(planned_batch(manifest, selection.precision, kinds))
    selection = dataclasses.replace(selection, max_batch_size=most)
    places = dict(islice(places_of(selection, replicas).items(), settings.replicas))
    return Installation(artifact, selection, Golden(manifest, selection.tolerance), places, most)


def _replicas_for(
    name: str, settings: ModelSettings, replicas: Sequence[Replica]
) -> Sequence[Replica]:
    """The replicas on the model's devices, least loaded first if the model needs only some."""
    if settings.devices is not None:
        replicas = [each for each in replicas if str(each.device) in settings.devices]
    if settings.replicas is None:
        return replicas
    return sorted(replicas, key=lambda each: sum(model.name != name for model in each.models))


def places_of(selection: Selection, replicas: Sequence[Replica]) -> dict[str, tuple[Device, ...]]:
    """The replicas to install a model on, and the devices that each of them uses for it.

    A model with several stages uses the devices of one replica per stage, and is installed on the
    first of these replicas. If there are too few, each replica runs all stages itself.
    """
    size, rest = stages(selection), list(replicas)
    places: dict[str, tuple[Device, ...]] = {}
    while group := _of_different_devices(rest, size):
        places[group[0].name] = tuple(each.device for each in group)
        rest = [each for each in rest if each not in group]
    return places or {each.name: (each.device,) for each in replicas}


def _of_different_devices(replicas: Sequence[Replica], size: int) -> list[Replica]:
    """The first `size` replicas on different devices; CPU replicas all count. Empty if too few."""
    group: list[Replica] = []
    for each in replicas:
        taken = {one.device for one in group if one.device.kind == "cuda"}
        if each.device not in taken and len(group) < size:
            group.append(each)
    return group if len(group) == size else []
