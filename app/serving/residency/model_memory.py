"""What models take of the memory of a process, and which of them leave for others.

What a model on demand is worth while it is loaded: its rate of use, times the seconds that another
load would take, divided by its bytes. docs/adr/0039-models-on-demand.md compares it with others.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from app.errors import ModelNotReady, Overloaded
from app.metrics import Metrics
from app.serving.residency.load_records import LoadRecord
from app.types import ModelId
from models.system.resources import resident_bytes

LEAST_RETRY_S = 1.0
# A load into memory that was freed before adds less to the process than the model takes.
REMEMBERED = 0.9  # of the figure of the last load: the least that counts
HALF_LIFE = 8  # a use counts half once there have been this many later uses per model
MOST_WEIGHT = 1e100  # before all counts of uses are scaled down
LAST_LOAD = 0.3  # its weight in the seconds expected of the next: loads vary more than models do
# Whatever else made the process grow meanwhile is not the model's.
MOST_TIMES, MOST_MORE = 4, 32 << 20  # the largest figure of a load, by its largest file
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """How much memory models may take.

    Attributes:
        budget_bytes: maximum for the models of this process.
        min_resident_s: a model that was loaded stays for at least this long.
    """

    budget_bytes: int
    min_resident_s: float


@dataclass(frozen=True, slots=True)
class Residency:
    """What is known of a version in the memory of this process.

    Attributes:
        nbytes: memory that it takes; None: it is not loaded.
        idle_s: seconds since a request last needed it, or since it was loaded; None: it is always
            loaded, or was never needed.
        left_s: seconds until it is expected to be loaded; None: it is not being loaded, or nothing
            is known of its load.
    """

    nbytes: int | None = None
    idle_s: float | None = None
    left_s: float | None = None


class AskToLoad(Protocol):
    """`Demand.ask`, for a given model."""

    def __call__(self, model: OnDemandModel, allowed_s: float, *, for_copies: bool) -> None: ...


class OnDemandModel:
    """A version that is loaded on demand; see `Demand`.

    Args:
        memory: counts its uses.
        model: its name, version and revision.
        load: loads it onto its replicas, from files that are checked.
        ask: answers `Demand.ask`.
        file_bytes: bytes of its weights: the least memory that it takes.
        idle_s: seconds without use after which it is removed; None: only for others.

    Attributes:
        identity: of its record.
        is_coming: whether its load runs, or waits for another one.
        is_for_copies: whether only copies have asked for its last load: no other model leaves for
            it, and it leaves first.
        nbytes: memory that it takes; before the first load an estimate.
        first_s: seconds that its first load took, which also timed all batch sizes; 0 before it.
        again_s: mean seconds of its later loads, the last ones weigh most; 0 before them.
        uses: its requests, the older the less they count; in the current weight of `memory`.
        used_at: moment of its last use.
        since: when it was last loaded.
        problem: why the last load failed; None: it did not.
        again_at: when a load that failed may be tried again.
    """

    def __init__(
        self,
        memory: ModelMemory,
        model: ModelId,
        load: Callable[[], Awaitable[None]],
        ask: AskToLoad,
        file_bytes: int,
        idle_s: float | None,
    ) -> None:
        self._memory = memory
        self._ask = ask
        self.model = model
        self.load = load
        self.idle_s = idle_s
        self.is_cold = True
        self.is_coming = False
        self.is_for_copies = False
        self.identity = ""
        self.file_bytes = self.nbytes = file_bytes
        self._recalled_s = self.first_s = self.again_s = 0.0
        self.uses = self.used_at = self.since = self.again_at = 0.0
        self.problem: str | None = None

    def used(self) -> None:
        self.is_for_copies = False
        self._memory.count_use(self)

    def ask(self, allowed_s: float, *, for_copies: bool = False) -> None:
        self._ask(self, allowed_s, for_copies=for_copies)

    @property
    def may_load(self) -> bool:
        return not self.has_just_failed and self._memory.has_room(self)

    @property
    def has_just_failed(self) -> bool:
        """Whether its last load failed a moment ago."""
        return self.problem is not None and self._memory.now() < self.again_at

    @property
    def load_s(self) -> float:
        """Seconds that its next load is expected to take; 0 if nothing is known of it."""
        if self.first_s == 0.0:
            return self._recalled_s
        return self.again_s or self.first_s * self._memory.again_share

    def recall(self, record: LoadRecord) -> None:
        """Use what an earlier process has recorded, until this one knows more."""
        self.nbytes = likely_bytes(record.nbytes, self.file_bytes)
        self._recalled_s, self.again_s = record.first_s, record.again_s

    @property
    def record(self) -> LoadRecord:
        """What is known of it, for later processes."""
        return LoadRecord(nbytes=self.nbytes, first_s=self.first_s, again_s=self.again_s)

    @property
    def worth(self) -> float:
        """The seconds of loading that keeping it saves, divided by its bytes."""
        return 0.0 if self.is_for_copies else self.uses * self.load_s / max(1, self.nbytes)


class ModelMemory:
    """The memory of all models of a process. On the event loop.

    Args:
        limits: for all of them.
        is_unused: whether no request for a model waits or runs.
        metrics: counts requests for which there is no room.
        now: the clock.
        resident: returns the memory of the process in bytes; None if it cannot be told.

    Attributes:
        models: those on demand.
        always: bytes of those that are always loaded.
        again_share: seconds of a model's second load, as a share of its first one.
    """

    def __init__(
        self,
        limits: MemoryLimits,
        is_unused: Callable[[ModelId], bool],
        metrics: Metrics,
        now: Callable[[], float] = time.monotonic,
        resident: Callable[[], int | None] = resident_bytes,
    ) -> None:
        self._limits = limits
        self._is_unused = is_unused
        self._metrics = metrics
        self.now = now
        self.resident = resident
        self.models: dict[ModelId, OnDemandModel] = {}
        self.always: dict[ModelId, int] = {}
        self.again_share = 1.0
        self._first_s = self._second_s = 0.0  # of all models that were loaded twice
        self._weight = 1.0  # of a use now
        metrics.model_memory.set_function(self.taken)
        metrics.model_memory_limit.set(limits.budget_bytes)

    def count_use(self, model: OnDemandModel) -> None:
        """Count a use of a model; later uses weigh more."""
        model.uses += self._weight
        model.used_at = self.now()
        self._weight *= 2.0 ** (1 / (HALF_LIFE * max(1, len(self.models))))
        if self._weight > MOST_WEIGHT:
            for each in self.models.values():
                each.uses /= self._weight
            self._weight = 1.0

    def grown(self, before: int | None) -> int:
        """Bytes that the process has now in addition to those before."""
        now = self.resident()
        return 0 if now is None or before is None else max(0, now - before)

    def has_loaded(self, model: OnDemandModel, before: int | None, seconds: float) -> None:
        """Record what a load took.

        Args:
            model: the model.
            before: bytes of the process before the load.
            seconds: that the load took.
        """
        model.nbytes = max(self._measured(before, model.file_bytes), int(REMEMBERED * model.nbytes))
        if not model.first_s:
            model.first_s = seconds
            return
        if not model.again_s:
            self._first_s += model.first_s
            self._second_s += seconds
            self.again_share = self._second_s / self._first_s
        model.again_s = model.load_s + LAST_LOAD * (seconds - model.load_s)

    def count_always(self, model: ModelId, before: int | None, file_bytes: int) -> None:
        """Record what a model took that is always loaded; see `has_loaded`."""
        self.always[model] = self._measured(before, file_bytes)

    def _measured(self, before: int | None, file_bytes: int) -> int:
        return likely_bytes(self.grown(before), file_bytes)

    def taken(self) -> int:
        """Bytes of all models that are loaded or being loaded."""
        here = (each.nbytes for each in self.models.values() if not each.is_cold or each.is_coming)
        return sum(self.always.values()) + sum(here)

    @property
    def is_short(self) -> bool:
        """Whether the models take more than they may."""
        return self.taken() > self._limits.budget_bytes

    def may_leave(self, model: OnDemandModel) -> bool:
        """Whether a model could be removed now."""
        stays_s = 0.0 if model.is_for_copies else self._limits.min_resident_s
        stays = model.is_cold or model.is_coming or self.now() < model.since + stays_s
        return not stays and self._is_unused(model.model)

    def least_worth(self) -> OnDemandModel | None:
        """The model that should leave next; None if none may."""
        leaving = (each for each in self.models.values() if self.may_leave(each))
        return min(leaving, key=lambda each: each.worth, default=None)

    def check_room(self, model: OnDemandModel) -> None:
        """Return if there is room for a model; see `has_room`.

        Raises:
            ModelNotReady: if it never fits.
            Overloaded: if it does not fit now.
        """
        budget, always = self._limits.budget_bytes, sum(self.always.values())
        if self._never_fits(model):
            self._count_refused(model)
            raise ModelNotReady(
                f"model {model.model.plain} takes at least {model.file_bytes / MIB:,.0f} MiB, and "
                f"models that are always loaded {always / MIB:,.0f} MiB; TORCHLANE_MODEL_MEMORY "
                f"allows {budget / MIB:,.0f} MiB in each process"
            )
        # A figure with which it would never fit may be wrong: only a load can tell.
        model.nbytes = min(model.nbytes, budget - always)
        if not self.has_room(model, for_copies=model.is_for_copies):
            raise self.no_room(model)

    def has_room(self, model: OnDemandModel, *, for_copies: bool = False) -> bool:
        """Whether a model is loaded, or would fit once others are removed that may be.

        For copies no other is removed.
        """
        if not model.is_cold or self._never_fits(model):
            return not model.is_cold
        budget, always = self._limits.budget_bytes, sum(self.always.values())
        added = 0 if model.is_coming else min(model.nbytes, budget - always)
        return (self.taken() if for_copies else self.least_taken()) + added <= budget

    def _never_fits(self, model: OnDemandModel) -> bool:
        return sum(self.always.values()) + model.file_bytes > self._limits.budget_bytes

    def least_taken(self) -> int:
        """Bytes that would be taken if all models left that may."""
        leaving = (each.nbytes for each in self.models.values() if self.may_leave(each))
        return self.taken() - sum(leaving)

    def no_room(self, model: OnDemandModel) -> Overloaded:
        """The error for a request for a model that does not fit now, which counts it."""
        self._count_refused(model)
        now, least_s = self.now(), self._limits.min_resident_s
        stays = [m.since + least_s - now for m in self.models.values() if not m.is_cold]
        next_s = min((each for each in stays if each > 0), default=0.0)
        retry_s = max(LEAST_RETRY_S, next_s)
        return Overloaded(
            f"there is no room for model {model.model.plain} now: the other loaded models are in "
            f"use, or were loaded less than {least_s:g} s ago; try again in {retry_s:.1f} s, or "
            "allow more memory (TORCHLANE_MODEL_MEMORY)",
            retry_after_s=retry_s,
        )

    def _count_refused(self, model: OnDemandModel) -> None:
        if not model.is_for_copies:
            self._metrics.cold_refused.inc()


def likely_bytes(measured: int, file_bytes: int) -> int:
    """What a model takes, if this was measured: not less than its largest file, nor far more."""
    return min(max(measured, file_bytes), MOST_TIMES * file_bytes + MOST_MORE)
