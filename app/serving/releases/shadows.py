"""Shadows: another version computes copies of a model's items, and its answers are compared.

A copy is taken where an item is computed, in whatever protocol it came, and is computed later, when
no request waits for any model. Copies take at most a tenth of the time, so that few requests find
a replica busy with one; further copies are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import structlog

from app.engine.engine import Engine
from app.errors import ItemFailed, TorchlaneError
from app.metrics import Metrics
from app.registry.loaded_models import LoadedModel, LoadedModels
from app.registry.releases import JUDGED_SHARE, Shadow, source_of_copies
from app.serving.releases.differing import Comparison, Differing, Pair, entry_of
from app.types import Arrays, Item, ModelId, Outcome
from models.tensors import Tolerance

LOG = structlog.get_logger(__name__)
MOST_ITEMS, MOST_BYTES = 64, 64 << 20  # that wait; further copies are dropped
# After a copy, a pause of nine times as long as it took: at most one request in ten then finds a
# replica busy with a copy.
REST, LONGEST_REST_S = 9, 10.0
LOOK_S = 0.5  # between two looks at the settings
PAUSE_S = 0.005  # before another look whether the engine is idle
WAIT_S = 10.0  # a copy that waits longer is dropped
COMPUTE_S = 10.0  # the deadline of a copy that is computed
KEPT = ("differs", "failed")  # results of which the input is kept


class Copy(NamedTuple):
    """An item that the shadow has not computed yet."""

    source: LoadedModel
    shadow: Shadow
    item: Item
    outputs: Arrays
    since: float


class Shadows:
    """The shadows of all models.

    Args:
        engine: computes the copies.
        loaded: which versions are served, with their settings.
        metrics: counts copies by result.
        differing: keeps inputs for which the answers differ.
        draw: returns a number from 0 to 1 for each item.
    """

    def __init__(
        self,
        engine: Engine,
        loaded: LoadedModels,
        metrics: Metrics,
        differing: Differing,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._engine = engine
        self._loaded = loaded
        self._metrics = metrics
        self.differing = differing
        self._draw = draw
        self._changes = -1
        self._followed: dict[ModelId, Pair] = {}  # by the version whose items are copied
        self._waiting: deque[Copy] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._logged: dict[str, str] = {}  # by model, why its shadow computes nothing
        self._write_at = self._next_at = 0.0

    def of(self, name: str) -> Shadow | None:
        """The shadow of a model: that of the models file, else the one that its release needs."""
        model = self._loaded.get(name)
        if model is None:
            return None
        shadow, release = model.settings.shadow, model.settings.release
        if shadow is None and release and source_of_copies(release, self._loaded.stage(name)):
            return Shadow(version=release.to, share=JUDGED_SHARE)
        return shadow

    def problem(self, name: str, shadow: Shadow) -> str | None:
        """Why the shadow of a model computes nothing; None: it does."""
        return why_not_comparable(self._loaded, ModelId(name, shadow.version))

    async def follow(self) -> None:
        """Follow the settings, and compute copies, until it is cancelled."""
        failure: str | None = None
        while True:
            try:
                await self._turn()
                failure = None
            except Exception as error:  # other models and copies have their turns
                if repr(error) != failure:
                    LOG.error("shadow_failed", exc_info=error)
                failure = repr(error)
                await asyncio.sleep(LOOK_S)

    async def _turn(self) -> None:
        self._look()
        await self._write()
        if self._waiting:
            pause_s = self._next_at - self._engine.now()
            await asyncio.sleep(min(max(PAUSE_S, pause_s), LOOK_S))
            self._drop_old()
            if self._waiting and self._engine.is_idle and self._engine.now() >= self._next_at:
                began = self._engine.now()
                await self._compute()
                ended = self._engine.now()
                self._next_at = ended + min(REST * (ended - began), LONGEST_REST_S)
        else:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), LOOK_S)

    async def _write(self) -> None:
        """Show other processes the kept inputs, at most once in `LOOK_S`."""
        if self._engine.now() >= self._write_at:
            await self.differing.write()
            self._write_at = self._engine.now() + LOOK_S

    def _look(self) -> None:
        """Take copies of those models whose settings say so."""
        if self._changes == self._loaded.changes:
            return
        self._changes = self._loaded.changes
        followed: dict[ModelId, Pair] = {}
        for model in self._loaded.models():
            name = model.id.name
            shadow = self.of(name)
            if shadow is None or model.id.version == shadow.version:
                continue
            self._tell(name, self.problem(name, shadow))
            source = source_of_copies(model.settings.release, self._loaded.stage(name))
            target = self._loaded.find(ModelId(name, shadow.version))
            if target is None or source not in (None, model.id.version):
                continue
            if model.reads_as(target):
                self._engine.copy_to(model.id, Sampler(self, model, shadow, self._draw))
                followed[model.id] = Pair.of(model, target, shadow)
        for model_id in self._followed.keys() - followed.keys():
            self._engine.copy_to(model_id, None)
        self._followed = followed
        self.differing.keep_only(followed.values())

    def _tell(self, name: str, problem: str | None) -> None:
        if problem is not None and self._logged.get(name) != problem:
            LOG.warning("shadow_idle", model=name, problem=problem)
        self._logged[name] = problem or ""

    def take(self, source: LoadedModel, shadow: Shadow, item: Item, outputs: Arrays) -> None:
        """Keep a copy, if there is room."""
        copy = Copy(source, shadow, item, outputs, self._engine.now())
        if len(self._waiting) >= MOST_ITEMS or self._waiting_bytes + item.nbytes > MOST_BYTES:
            self._count(copy, "dropped")
            return
        self._waiting.append(copy)
        self._waiting_bytes += item.nbytes
        self._arrived.set()

    def _count(self, copy: Copy, result: str) -> None:
        labels = copy.source.id.name, str(copy.shadow.version), result
        self._metrics.shadow_items.labels(*labels).inc()

    def _drop_old(self) -> None:
        while self._waiting and self._waiting[0].since < self._engine.now() - WAIT_S:
            self._count(self._next(), "dropped")

    async def _compute(self) -> None:
        """Compute the oldest copy, and compare it."""
        copy = self._next()
        source, shadow = copy.source, copy.shadow
        target = self._loaded.find(ModelId(source.id.name, shadow.version))
        if target is None or self._followed.get(source.id) != Pair.of(source, target, shadow):
            return  # the settings have changed since
        deadline = self._engine.now() + COMPUTE_S
        try:
            answer = await self._engine.predict(target.id, [copy.item], deadline, are_copies=True)
        except TorchlaneError:  # rejected, or the server stops
            self._count(copy, "dropped")
            return
        (outcome,) = answer.outcomes
        result = _result(copy, outcome)
        self._count(copy, result)
        if result in KEPT and shadow.keep:
            both = Comparison(source, target, copy.item, copy.outputs, outcome, result)
            self.differing.add(entry_of(both, shadow))

    def _next(self) -> Copy:
        copy = self._waiting.popleft()
        self._waiting_bytes -= copy.item.nbytes
        return copy


class Sampler:
    """Offers a share of a model's items; see `Copies`."""

    def __init__(
        self, shadows: Shadows, source: LoadedModel, shadow: Shadow, draw: Callable[[], float]
    ) -> None:
        self._shadows = shadows
        self._source = source
        self._shadow = shadow
        self._draw = draw

    def offer(self, item: Item, outputs: Arrays) -> None:
        if self._draw() < self._shadow.share:
            self._shadows.take(self._source, self._shadow, item, outputs)


def why_not_comparable(loaded: LoadedModels, target: ModelId) -> str | None:
    """Why a version cannot compute what other versions of its model do; None: it can."""
    model, version = loaded.find(target), target.version
    if model is None:
        return f"version {version} is not served; TORCHLANE_VERSIONS sets which are served"
    others = [each for each in loaded.models() if each.id.name == target.name and each is not model]
    if not others:
        return f"no other version than {version} is served"
    if not any(each.reads_as(model) for each in others):
        return (
            f"version {version} reads its inputs in another way, so it cannot compute items of "
            "other versions"
        )
    return None


def _result(copy: Copy, outcome: Outcome) -> str:
    """How a shadow's outcome compares with the answer of the served version."""
    if isinstance(outcome, ItemFailed):
        return "failed"
    source = copy.source
    labelled = source.manifest.codec.labels is not None
    scores = source.manifest.outputs[0].name if labelled else None
    return compared(scores, source.selection.tolerance, copy.outputs, outcome)


def compared(scores: str | None, tolerance: Tolerance, expected: Arrays, actual: Arrays) -> str:
    """How another version's prediction of an item compares.

    Args:
        scores: the name of the output with scores of labels, if there is one.
        tolerance: how far they may differ.
        expected: what the served version returned.
        actual: what the other one returned.

    Returns:
        `agrees` if all outputs are within the tolerance, `same_label` if only the largest score has
        the same place, else `differs`.
    """
    if all(
        name in actual and tolerance.excess(array, actual[name]) is None
        for name, array in expected.items()
    ):
        return "agrees"
    other = None if scores is None else actual.get(scores)
    if scores is None or other is None or expected[scores].shape != other.shape:
        return "differs"
    return "same_label" if np.argmax(expected[scores]) == np.argmax(other) else "differs"
