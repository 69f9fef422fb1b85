"""One backend made of one per form: each batch runs in the form that is the fastest at its size."""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import structlog

from app.backends.base import Backend, Between, Launched, LaunchingBackend, close_safely, size_of
from app.backends.golden import Golden
from app.errors import DoesNotFit, ModelError, ReplicaError, VariantUnusable
from app.types import Arrays, ServedStep, Serving
from models.plan import (
    GIL_LIMIT_S,
    WARM_RUNS,
    Form,
    Rounds,
    Step,
    choose,
    choose_one,
    form_at,
    nothing,
    seconds_of,
    time_interleaved,
    within_limits,
)
from models.processor import Processor

LOG = structlog.get_logger(__name__)
TIMED_ROUNDS = 9
PATIENCE_S = 60.0  # with another replica that measures
LOOK_S = 0.001  # between two looks at what else a waiting thread could do
TIMING_BUDGET_S = 0.5  # per batch size: a large model gets fewer rounds, but MIN_ROUNDS


@dataclass(frozen=True, slots=True)
class Part:
    """A form that may serve.

    Attributes:
        backend: runs it.
        golden: the examples, against the tolerance of its variant.
        holds_gil: whether a forward stops the whole process, so that only short ones may be used.
        prefetches: whether it is better given its next batch before it asks for one, though its
            device does not work by itself.
    """

    backend: Backend
    golden: Golden
    holds_gil: bool = False
    prefetches: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """What a server measured itself."""

    steps: tuple[Step, ...]
    median_us: Mapping[str, Mapping[int, float]]


class Measurements:
    """What was measured in this process, so that replicas of one kind measure once, in turns."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Measured] = {}
        self._lock = threading.Lock()

    def known(self, key: Hashable) -> Measured | None:
        """What was measured before."""
        return self._found.get(key)

    def get(
        self, key: Hashable, measure: Callable[[], Measured], between: Between = nothing
    ) -> Measured:
        """What is known, else what `measure` finds; who waits so long has time for others."""
        waits_until = time.monotonic() + PATIENCE_S
        while not self._lock.acquire(timeout=LOOK_S):
            if key in self._found:
                return self._found[key]
            if time.monotonic() > waits_until:  # who measures may hang: it is no longer waited for
                return measure()
            between()
        try:
            if key not in self._found:
                self._found[key] = measure()
            return self._found[key]
        finally:
            self._lock.release()


class PlannedBackend:
    """Dispatches by batch size; see `app.backends.base.Backend`.

    It follows the steps that it is given, or that another replica has measured. Where there are
    none, or one of their forms cannot be used here, it holds a contest: it loads every form, times
    them while it is warmed, and keeps the fastest.

    Args:
        parts: form -> its backend, in the order of preference.
        steps: what export measured on such a processor; None: measure.
        processor: what it runs on.
        measurements: where measured steps are kept.
        key: what is measured: artifact, selection and kind of processor.
        mixable: whether all forms give the same answers; if not, one of them runs every size.
    """

    def __init__(
        self,
        parts: Mapping[Form, Part],
        steps: tuple[Step, ...] | None,
        processor: Processor,
        measurements: Measurements,
        key: Hashable,
        *,
        mixable: bool = True,
    ) -> None:
        self._parts = dict(parts)
        self._stored = steps
        self._steps: tuple[Step, ...] = steps or ()
        self._processor = processor
        self._measurements = measurements
        self._key = key
        self._choose = choose if mixable else choose_one
        self._loaded: dict[Form, Part] = {}
        self._measured: Measured | None = None

    def load(self) -> None:
        """See `Backend`.

        Raises:
            VariantUnusable: if no form can be used here.
        """
        if self._stored is None:
            self._measured = self._measurements.known((self._key, tuple(self._parts)))
            self._steps = self._measured.steps if self._measured else ()
        planned = {step.form for step in self._steps}
        refusals = self._load([form for form in self._parts if form in planned])
        if not planned or planned - self._loaded.keys():  # no plan holds: whatever there is joins
            self._stored = self._measured = None
            refusals += self._load([form for form in self._parts if form not in self._loaded])
            self._loaded = dict(self._parts)  # in the order of preference again
            if not self._loaded:
                raise VariantUnusable("; ".join(dict.fromkeys(refusals)))
            self._steps = (Step(up_to=1, form=next(iter(self._loaded))),)

    def warm_up(self, batches: Sequence[Arrays], between: Between = nothing) -> None:
        """See `Backend`; replays the golden examples on every form, and measures where it must.

        Raises:
            ArtifactInvalid: if a form answers wrongly.
            ModelError: if a planned form, or every form, fails.
        """
        by_size: dict[int, list[Arrays]] = {}
        for batch in batches:
            by_size.setdefault(size_of(batch), []).append(batch)
        if self._stored is not None or self._measured is not None:
            for form, part in self._loaded.items():
                served = [size for size in by_size if form_at(self._steps, size) == form]
                _warm(part, by_size, sorted(served), between)
            return
        sizes = self._warm_contestants(by_size, between)
        if len(self._loaded) > 1 and by_size:
            key = (self._key, tuple(self._loaded))  # another replica may have lost a form
            self._measured = self._measurements.get(
                key, lambda: self._measure(by_size, sizes, between), between
            )
            self._steps = self._measured.steps
            LOG.info(
                "plan_measured",
                processor=str(self._processor),
                steps={step.up_to: str(step.form) for step in self._steps},
            )
        else:
            self._steps = (Step(up_to=1, form=next(iter(self._loaded))),)
        self._close_unused()

    def run(self, inputs: Arrays) -> Arrays:
        """See `Backend`."""
        return self._at(size_of(inputs)).run(inputs)

    def stage(self, shapes: Mapping[str, Sequence[int]]) -> Arrays:
        """See `LaunchingBackend`."""
        return self._launching(next(iter(shapes.values()))[0]).stage(shapes)

    def launch(self, inputs: Arrays) -> Launched:
        """See `LaunchingBackend`."""
        return self._launching(size_of(inputs)).launch(inputs)

    def serving(self) -> Serving:
        """See `Backend`."""
        parts = self._loaded.values()
        launches = bool(parts) and all(part.backend.serving().launches for part in parts)
        prefetches = launches or (bool(parts) and all(part.prefetches for part in parts))
        return dataclasses.replace(self._served(), launches=launches, prefetches=prefetches)

    def _served(self) -> Serving:
        steps = tuple(ServedStep(step.up_to, str(step.form)) for step in self._steps)
        if self._measured is not None:
            return Serving(steps, str(self._processor), "server", self._measured.median_us)
        if self._stored is not None:
            return Serving(steps, str(self._processor), "export")
        return Serving((ServedStep(None, steps[0].form),) if steps else ())

    def close(self) -> None:
        """See `Backend`."""
        for part in self._loaded.values():
            close_safely(part.backend)
        self._loaded = {}

    def _at(self, size: int) -> Backend:
        """Who runs batches of that size."""
        part = self._loaded.get(form_at(self._steps, size)) if self._steps else None
        if part is None:
            raise ReplicaError("bug: the backend runs although it is not loaded")
        return part.backend

    def _launching(self, size: int) -> LaunchingBackend:
        return cast(LaunchingBackend, self._at(size))  # as all say of themselves

    def _load(self, forms: Sequence[Form]) -> list[str]:
        """Load what can be used here; what refuses is dropped, and its reasons are returned."""
        refusals = []
        for form in forms:
            part = self._parts[form]
            try:
                part.backend.load()
            except (VariantUnusable, DoesNotFit) as error:
                if isinstance(error, DoesNotFit) and not self._loaded:
                    raise
                LOG.warning("variant_unusable", form=str(form), reason=str(error))
                refusals.append(str(error))
                del self._parts[form]
            else:
                self._loaded[form] = part
        return refusals

    def _warm_contestants(
        self, by_size: Mapping[int, Sequence[Arrays]], between: Between
    ) -> dict[Form, set[int]]:
        """Warm every form; one that fails here is dropped while there are others.

        Returns:
            at which sizes each form may run.
        """
        sizes: dict[Form, set[int]] = {}
        for form, part in list(self._loaded.items()):
            try:
                alone = len(self._loaded) == 1
                ascending = sorted(by_size)
                sizes[form] = _warm(part, by_size, ascending, between, stop_at_limit=not alone)
            except ModelError as error:
                if len(self._loaded) == 1:
                    raise
                LOG.error("form_dropped", form=str(form), problem=str(error))
                close_safely(self._loaded.pop(form).backend)
        return sizes

    def _measure(
        self,
        by_size: Mapping[int, Sequence[Arrays]],
        sizes: Mapping[Form, set[int]],
        between: Between,
    ) -> Measured:
        rounds: dict[int, dict[Form, list[float]]] = {}
        for size, same in sorted(by_size.items()):
            runs = {
                form: _runner(part.backend, same)
                for form, part in self._loaded.items()
                if size in sizes[form]
            }
            taken = time_interleaved(runs, TIMED_ROUNDS, TIMING_BUDGET_S, between)
            rounds[size] = {form: [t / len(same) for t in times] for form, times in taken.items()}
        holds_gil = [form for form, part in self._loaded.items() if part.holds_gil]
        allowed = within_limits(rounds, holds_gil)
        candidates = tuple(self._loaded)
        steps = self._choose(allowed, candidates) or self._choose(rounds, candidates)
        return Measured(steps, _medians_us(rounds))

    def _close_unused(self) -> None:
        used = {step.form for step in self._steps}
        for form in [form for form in self._loaded if form not in used]:
            close_safely(self._loaded.pop(form).backend)


def _warm(
    part: Part,
    by_size: Mapping[int, Sequence[Arrays]],
    sizes: Sequence[int],
    between: Between,
    *,
    stop_at_limit: bool = False,
) -> set[int]:
    """Warm a form at ascending sizes and replay the golden examples on it.

    A form that holds the GIL stops the whole process while it runs: it gets no further than to the
    first size at which it does so for too long, or, where it must serve, says so.

    Returns:
        the sizes at which it was warmed.
    """
    warmed: list[int] = []
    for size in sizes:
        part.backend.warm_up(by_size[size], between)
        if part.holds_gil:
            longest_s = max(_seconds(part.backend, batch) for batch in by_size[size])
            if longest_s > GIL_LIMIT_S and stop_at_limit:
                break
            if longest_s > GIL_LIMIT_S:
                LOG.warning(
                    "forward_stops_the_process",
                    batch_size=size,
                    milliseconds=round(longest_s * 1000, 2),
                    limit=GIL_LIMIT_S * 1000,
                    instead="serve the plan, or a TorchScript variant",
                )
        warmed.append(size)
    part.golden.replay(part.backend, warmed, between)
    return set(warmed)


def _seconds(backend: Backend, batch: Arrays) -> float:
    """The least of a few: whatever else the machine does is no fault of the form."""
    return min(seconds_of(lambda: backend.run(batch)) for _ in range(WARM_RUNS))


def _runner(backend: Backend, batches: Sequence[Arrays]) -> Callable[[], object]:
    return lambda: [backend.run(batch) for batch in batches]


def _medians_us(rounds: Rounds) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for size, taken in rounds.items():
        for form, times in taken.items():
            found.setdefault(str(form), {})[size] = round(statistics.median(times) * 1e6, 1)
    return found
