"""What lists of models say of versions: state, memory, weights, release and shadow."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from app.api.openapi import schemas
from app.api.service import Service
from app.registry.loaded_models import ModelState, VersionStatus
from app.registry.weights import Split
from app.serving.releases.judge import AllCounts, Counts, counts_of
from app.serving.residency.model_memory import Residency
from app.types import ModelId


async def comparisons(service: Service, names: Iterable[str]) -> AllCounts:
    """The counts of the models that have a shadow."""
    shadowed = [name for name in names if service.shadows.of(name) is not None]
    return await service.metrics.read(partial(counts_of, shadowed)) if shadowed else {}


def release_state(service: Service, name: str) -> schemas.ModelRelease | None:
    """How far the release of a model is; None if it has none."""
    stage, release = service.loaded.stage(name), service.releases.of(name)
    if release is None:
        return None
    if stage is not None and stage.release != release:
        stage = None  # of the release before a change of the models file
    problem = service.releases.problem(name)
    return schemas.ModelRelease(
        to=release.to,
        old=stage.old if stage else release.old,
        state="waiting" if stage is None or problem else stage.phase.value,
        step=stage.step + 1 if stage else 0,
        steps=release.steps,
        percent=stage.percent if stage else 0.0,
        seconds=round(time.time() - stage.since, 1) if stage else None,
        reason=stage.reason if stage else None,
        problem=problem,
    )


def shadow_state(service: Service, name: str, counts: AllCounts) -> schemas.ComparedShadow | None:
    """The shadow of a model, and how its answers compare; None if it has none."""
    shadow = service.shadows.of(name)
    if shadow is None:
        return None
    found = counts.get(ModelId(name, shadow.version), Counts())
    return schemas.ComparedShadow(
        version=shadow.version,
        share=shadow.share,
        problem=service.shadows.problem(name, shadow),
        compared=int(found.compared),
        agreement=round(found.agreed / found.compared, 4) if found.compared else None,
    )


def weights_of(split: Split | None) -> schemas.VersionWeights | None:
    """The weights of a model's versions; None if they have none."""
    if split is None:
        return None
    versions = [
        schemas.VersionWeight(version=number, weight=weight, share=split.shares.get(number, 0.0))
        for number, weight in split.weights.items()
    ]
    return schemas.VersionWeights(sticky=split.sticky, versions=versions, problem=split.problem)


def version_state(service: Service, status: VersionStatus) -> schemas.VersionState:
    """A version that the server knows."""
    loading = status.state is ModelState.LOADING
    model = service.loaded.find(status.id)
    residency = Residency() if model is None else service.on_demand.residency(model.id)
    return schemas.VersionState(
        version=status.id.version,
        state=status.state.value,
        problem=status.problem,
        step=status.step if loading else None,
        stage=status.stage if loading else None,
        progress=status.progress if loading else None,
        seconds=round(time.monotonic() - status.since, 1) if loading else None,
        left_s=_tenths(residency.left_s),
        memory_bytes=residency.nbytes,
        idle_s=_tenths(residency.idle_s),
    )


def _tenths(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
