"""How a version is installed: in which form, on which replicas, in batches of which size."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import structlog

from app.backends.golden import Golden
from app.backends.selection import Preference, Selection, planned_batch, select, stages
from app.engine.execution.replica import Replica
from app.engine.scheduling.batch_policy import BatchLimits
from app.engine.scheduling.model_queue import ModelLimits
from app.registry.model_settings import ModelSettings
from app.registry.repository import Artifact
from app.types import Device

LOG = structlog.get_logger(__name__)
# How long a batch may grow while every turn of the event loop reads more: a wave of 32 requests is
# read within it; what trickles in all the time is not held for longer.
GATHER_S = 0.002


def limits_of(settings: ModelSettings, max_batch_size: int) -> ModelLimits:
    """What the engine is told of a model's settings."""
    return ModelLimits(
        BatchLimits(max_batch_size, settings.batch_wait_s, GATHER_S),
        settings.queue_limit_items,
        settings.queue_limit_bytes,
        settings.cache,
    )


@dataclass(frozen=True, slots=True)
class Installation:
    """How a version is installed.

    Attributes:
        artifact: what.
        selection: in which form.
        golden: its examples.
        places: names of the replicas that it is for, and the devices that each uses for it.
        max_batch_size: the largest batch that it is warmed for, if that is worth it.
    """

    artifact: Artifact
    selection: Selection
    golden: Golden
    places: Mapping[str, tuple[Device, ...]]
    max_batch_size: int


def planned(
    artifact: Artifact, settings: ModelSettings, replicas: Sequence[Replica]
) -> Installation:
    """How the settings of a model say that it is installed.

    Args:
        artifact: a version of it.
        settings: its own.
        replicas: all there are.

    Raises:
        NotAsAskedFor: if it has no such variant.
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
    """Those on the devices of the model; where it does not need all, the emptiest first."""
    if settings.devices is not None:
        replicas = [each for each in replicas if str(each.device) in settings.devices]
    if settings.replicas is None:
        return replicas
    return sorted(replicas, key=lambda each: sum(model.name != name for model in each.models))


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
