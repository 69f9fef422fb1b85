"""A backend that combines the backends of forms: each batch runs in the fastest for its size."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import structlog

from app.backends.base import (
    Backend,
    Between,
    LaunchedBatch,
    LaunchingBackend,
    WarmUp,
    close_safely,
    size_of,
)
from app.backends.golden import Golden
from app.backends.growth import GrowthByLength
from app.errors import DoesNotFit, ModelError, ReplicaError, VariantUnusable
from app.types import Arrays, ServedStep, Serving
from models.plan import Form, Rounds, Step, choose, choose_one, form_at
from models.processor import Processor
from models.stopping import is_decided, remaining
from models.timing import TimingLimits, nothing, take_turns

LOG = structlog.get_logger(__name__)
CONTEST_LIMITS = TimingLimits(rounds=9, budget_s=0.5, warm_runs=0)  # for each batch size
PATIENCE_S = 60.0  # to wait for another replica that measures
POLL_S = 0.001  # between two calls of other work in a waiting thread

BatchesBySize: TypeAlias = Iterable[tuple[int, Sequence[Arrays]]]  # size -> a batch of each shape


@dataclass(frozen=True, slots=True)
class Candidate:
    """A form that may serve.

    Attributes:
        golden: the examples, with the tolerance of its variant.
    """

    backend: Backend
    golden: Golden


@dataclass(frozen=True, slots=True)
class Measurement:
    """The results of a server's own measurement.

    Attributes:
        steps: the fastest form by batch size.
        median_us: form -> batch size -> microseconds of a forward.
        largest: the largest batch that is worth running.
    """

    steps: tuple[Step, ...]
    median_us: Mapping[str, Mapping[int, float]]
    largest: int


class Measurements:
    """The measurements of this process: replicas of one kind measure only once, in turns."""

    def __init__(self) -> None:
        self._measurements: dict[Hashable, Measurement] = {}
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> Measurement | None:
        """An earlier measurement."""
        return self._measurements.get(key)

    def get(
        self, key: Hashable, measure: Callable[[], Measurement], between: Between = nothing
    ) -> Measurement:
        """An earlier measurement, or the result of `measure`; a waiting thread calls `between`."""
        waits_until = time.monotonic() + PATIENCE_S
        while not self._lock.acquire(timeout=POLL_S):
            if key in self._measurements:
                return self._measurements[key]
            if time.monotonic() > waits_until:  # the other replica may hang: stop waiting
                return measure()
            between()
        try:
            if key not in self._measurements:
                self._measurements[key] = measure()
            return self._measurements[key]
        finally:
            self._lock.release()


class PlannedBackend:
    """Runs each batch in the form for its size; see `app.backends.base.Backend`.

    It follows the given steps, or the steps that another replica has measured. If there are none,
    or one of their forms cannot be used here, it runs a contest: it loads every form, times all
    during warm-up, and keeps the fastest.

    Args:
        candidates: form -> its backend, in the order of preference.
        steps: export's steps for such a processor; None to measure.
        processor: the processor on which it runs.
        measurements: stores measured steps.
        key: identifies a measurement: artifact, selection and kind of processor.
        mixable: whether all forms return the same answers; if not, one form runs every size.
    """

    def __init__(
        self,
        candidates: Mapping[Form, Candidate],
        steps: tuple[Step, ...] | None,
        processor: Processor,
        measurements: Measurements,
        key: Hashable,
        *,
        mixable: bool = True,
    ) -> None:
        self._candidates = dict(candidates)
        self._stored_steps = steps
        self._steps: tuple[Step, ...] = steps or ()
        self._processor = processor
        self._measurements = measurements
        self._key = key
        self._choose = choose if mixable else choose_one
        self._loaded_forms: dict[Form, Candidate] = {}
        self._measurement: Measurement | None = None

    def load(self) -> None:
        """See `Backend`.

        Raises:
            VariantUnusable: if no form can be used here.
        """
        if self._stored_steps is None:
            self._measurement = self._measurements.find((self._key, tuple(self._candidates)))
            self._steps = self._measurement.steps if self._measurement else ()
        planned_forms = {step.form for step in self._steps}
        problems = self._load([form for form in self._candidates if form in planned_forms])
        # If no plan applies, all forms compete.
        if not planned_forms or planned_forms - self._loaded_forms.keys():
            self._stored_steps = self._measurement = None
            problems += self._load(
                [form for form in self._candidates if form not in self._loaded_forms]
            )
            self._loaded_forms = dict(self._candidates)  # in the order of preference again
            if not self._loaded_forms:
                raise VariantUnusable("; ".join(dict.fromkeys(problems)))
            self._steps = (Step(up_to=1, form=next(iter(self._loaded_forms))),)

    def warm_up(self, batches: Iterable[Arrays], between: Between = nothing) -> WarmUp:
        """See `Backend`; replays the golden examples on every form, and measures if needed.

        Raises:
            ArtifactInvalid: if a form's outputs are wrong.
            ModelError: if a planned form, or every form, fails.
        """
        groups = itertools.groupby(batches, key=size_of)
        if (first := next(((size, list(same)) for size, same in groups), None)) is None:
            return WarmUp(1)
        later = ((size, list(same)) for size, same in groups)
        batches_by_size = itertools.chain([first], later)
        if len(self._loaded_forms) > 1 and self._stored_steps is None and self._measurement is None:
            key = (
                self._key,
                tuple(self._loaded_forms),
            )  # another replica may have lost a form
            # The measuring replica consumes all batches, and has warmed the forms that it chooses.
            self._measurement = self._measurements.get(
                key, lambda: self._measure(batches_by_size, between), between
            )
            self._steps = self._measurement.steps
            LOG.info(
                "plan_measured",
                processor=str(self._processor),
                steps={step.up_to: str(step.form) for step in self._steps},
            )
        self._close_unused()
        if self._measurement is None:
            return self._warm(batches_by_size, between)
        largest = self._measurement.largest
        warm_up = self._warm(
            itertools.takewhile(lambda each: each[0] <= largest, batches_by_size), between
        )
        return WarmUp(largest, warm_up.seconds)

    def shares(self, other: Backend) -> bool:
        return (
            isinstance(other, PlannedBackend)
            and self._steps == other._steps
            and self._loaded_forms.keys() == other._loaded_forms.keys()
            and all(
                candidate.backend.shares(other._loaded_forms[form].backend)
                for form, candidate in self._loaded_forms.items()
            )
        )

    def run(self, inputs: Arrays) -> Arrays:
        return self._at(size_of(inputs)).run(inputs)

    def stage(self, shapes: Mapping[str, Sequence[int]]) -> Arrays:
        return self._launching(next(iter(shapes.values()))[0]).stage(shapes)

    def launch(self, inputs: Arrays) -> LaunchedBatch:
        return self._launching(size_of(inputs)).launch(inputs)

    def serving(self) -> Serving:
        candidates = self._loaded_forms.values()
        launches = bool(candidates) and all(
            candidate.backend.serving().launches for candidate in candidates
        )
        return dataclasses.replace(self._plan_serving(), launches=launches, prefetches=launches)

    def _plan_serving(self) -> Serving:
        steps = tuple(ServedStep(step.up_to, str(step.form)) for step in self._steps)
        if self._measurement is not None:
            return Serving(steps, str(self._processor), "server", self._measurement.median_us)
        if self._stored_steps is not None:
            return Serving(steps, str(self._processor), "export")
        return Serving((ServedStep(None, steps[0].form),) if steps else ())

    def close(self) -> None:
        for candidate in self._loaded_forms.values():
            close_safely(candidate.backend)
        self._loaded_forms = {}

    def _at(self, size: int) -> Backend:
        """The backend for batches of this size."""
        candidate = self._loaded_forms.get(form_at(self._steps, size)) if self._steps else None
        if candidate is None:
            raise ReplicaError("bug: the backend runs although it is not loaded")
        return candidate.backend

    def _launching(self, size: int) -> LaunchingBackend:
        return cast(LaunchingBackend, self._at(size))  # as every candidate reports

    def _load(self, forms: Sequence[Form]) -> list[str]:
        """Load the usable forms; drop the others, and return the reasons."""
        problems = []
        for form in forms:
            candidate = self._candidates[form]
            try:
                candidate.backend.load()
            except (VariantUnusable, DoesNotFit) as error:
                if isinstance(error, DoesNotFit) and not self._loaded_forms:
                    raise
                LOG.info("variant_unusable", form=str(form), reason=str(error))
                problems.append(str(error))
                del self._candidates[form]
            else:
                self._loaded_forms[form] = candidate
        return problems

    def _warm(self, batches_by_size: BatchesBySize, between: Between) -> WarmUp:
        """Warm the form for each size, and replay the golden examples on it."""
        growing, proved_forms = GrowthByLength(), set[Form]()
        times: dict[int, dict[int, float]] = {}
        for size, batches in batches_by_size:
            form = form_at(self._steps, size)
            candidate = self._loaded_forms[form]
            if form not in proved_forms and size > 1:
                candidate.golden.replay_at(candidate.backend, 1, between)
            proved_forms.add(form)
            same = _worth_it(candidate, batches, growing)
            seconds = _warm_at(candidate, size, same, between, growing)
            for length, took_s in seconds.items():
                times.setdefault(length, {})[size] = took_s
            if not growing.record(size, seconds):
                break
        return WarmUp(growing.largest, times)

    def _measure(self, batches_by_size: BatchesBySize, between: Between) -> Measurement:
        """Run a contest: warm every form at ascending sizes, time all in turns, and choose.

        A form that fails is dropped while others remain. A slow form that has clearly lost at a
        size does not run at larger sizes.
        """
        growing = GrowthByLength()
        rounds: dict[int, dict[Form, list[float]]] = {}
        contestants = list(self._loaded_forms)
        for size, batches in batches_by_size:
            same = _worth_it(self._loaded_forms[contestants[0]], batches, growing)
            seconds: dict[int, float] = {}  # the fastest form's, by length
            for form in tuple(contestants):
                candidate = self._loaded_forms[form]
                try:
                    for length, took_s in _warm_at(candidate, size, same, between, growing).items():
                        seconds[length] = min(took_s, seconds.get(length, took_s))
                except ModelError as error:
                    if len(self._loaded_forms) == 1:
                        raise
                    LOG.error("form_dropped", form=str(form), problem=str(error))
                    close_safely(self._loaded_forms.pop(form).backend)
                    for times_by_form in rounds.values():
                        times_by_form.pop(form, None)
                    contestants.remove(form)
            runs = {form: _runner(self._loaded_forms[form].backend, same) for form in contestants}
            threads = self._processor.threads if self._processor.kind == "cpu" else None
            new_times = take_turns(
                runs, CONTEST_LIMITS, between, threads, enough=is_decided
            ).seconds
            rounds[size] = {f: [t / len(same) for t in times] for f, times in new_times.items()}
            quickest_s = min(min(times) for times in new_times.values())
            if not growing.record(size, {0: quickest_s} if 0 in seconds else seconds):
                break
            contestants = remaining(new_times)
        steps = self._choose(rounds, tuple(self._loaded_forms))
        return Measurement(steps, _medians_us(rounds), growing.largest)

    def _close_unused(self) -> None:
        planned_forms = {step.form for step in self._steps}
        for form in [form for form in self._loaded_forms if form not in planned_forms]:
            close_safely(self._loaded_forms.pop(form).backend)


def _worth_it(
    candidate: Candidate, batches: Sequence[Arrays], growing: GrowthByLength
) -> list[Arrays]:
    """The batches of lengths that are worth running at their size."""
    return [
        batch for batch in batches if candidate.golden.length(batch) not in growing.full_lengths
    ]


def _warm_at(
    candidate: Candidate,
    size: int,
    same: Sequence[Arrays],
    between: Between,
    growing: GrowthByLength,
) -> dict[int, float]:
    """Warm a form at one size and replay the golden examples on it.

    Returns:
        length -> seconds of a forward.
    """
    candidate.backend.warm_up(same, between)
    return candidate.golden.replay_at(candidate.backend, size, between, growing.full_lengths)


def _runner(backend: Backend, batches: Sequence[Arrays]) -> Callable[[], object]:
    return lambda: [backend.run(batch) for batch in batches]


def _medians_us(rounds: Rounds) -> dict[str, dict[int, float]]:
    medians_us: dict[str, dict[int, float]] = {}
    for size, times_by_form in rounds.items():
        for form, times in times_by_form.items():
            medians_us.setdefault(str(form), {})[size] = round(statistics.median(times) * 1e6, 1)
    return medians_us
