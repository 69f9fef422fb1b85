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
    Launched,
    LaunchingBackend,
    Warmed,
    close_safely,
    size_of,
)
from app.backends.golden import Golden
from app.backends.growth import Growing
from app.errors import DoesNotFit, ModelError, ReplicaError, VariantUnusable
from app.types import Arrays, ServedStep, Serving
from models.plan import Form, Rounds, Step, choose, choose_one, form_at
from models.processor import Processor
from models.stopping import is_decided, remaining
from models.timing import TimingLimits, nothing, take_turns

LOG = structlog.get_logger(__name__)
TIMED = TimingLimits(rounds=9, budget_s=0.5, warm_runs=0)  # for each batch size
PATIENCE_S = 60.0  # to wait for another replica that measures
POLL_S = 0.001  # between two calls of other work in a waiting thread

Sized: TypeAlias = Iterable[tuple[int, Sequence[Arrays]]]  # size -> a batch of each shape


@dataclass(frozen=True, slots=True)
class Part:
    """A form that may serve.

    Attributes:
        backend: runs the form.
        golden: the examples, with the tolerance of its variant.
    """

    backend: Backend
    golden: Golden


@dataclass(frozen=True, slots=True)
class Measured:
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
        self._found: dict[Hashable, Measured] = {}
        self._lock = threading.Lock()

    def known(self, key: Hashable) -> Measured | None:
        """An earlier measurement."""
        return self._found.get(key)

    def get(
        self, key: Hashable, measure: Callable[[], Measured], between: Between = nothing
    ) -> Measured:
        """An earlier measurement, or the result of `measure`; a waiting thread calls `between`."""
        waits_until = time.monotonic() + PATIENCE_S
        while not self._lock.acquire(timeout=POLL_S):
            if key in self._found:
                return self._found[key]
            if time.monotonic() > waits_until:  # the other replica may hang: stop waiting
                return measure()
            between()
        try:
            if key not in self._found:
                self._found[key] = measure()
            return self._found[key]
        finally:
            self._lock.release()


class PlannedBackend:
    """Runs each batch in the form for its size; see `app.backends.base.Backend`.

    It follows the given steps, or the steps that another replica has measured. If there are none,
    or one of their forms cannot be used here, it runs a contest: it loads every form, times all
    during warm-up, and keeps the fastest.

    Args:
        parts: form -> its backend, in the order of preference.
        steps: export's steps for such a processor; None to measure.
        processor: the processor on which it runs.
        measurements: stores measured steps.
        key: identifies a measurement: artifact, selection and kind of processor.
        mixable: whether all forms return the same answers; if not, one form runs every size.
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
        problems = self._load([form for form in self._parts if form in planned])
        if not planned or planned - self._loaded.keys():  # no plan applies: all forms compete
            self._stored = self._measured = None
            problems += self._load([form for form in self._parts if form not in self._loaded])
            self._loaded = dict(self._parts)  # in the order of preference again
            if not self._loaded:
                raise VariantUnusable("; ".join(dict.fromkeys(problems)))
            self._steps = (Step(up_to=1, form=next(iter(self._loaded))),)

    def warm_up(self, batches: Iterable[Arrays], between: Between = nothing) -> Warmed:
        """See `Backend`; replays the golden examples on every form, and measures if needed.

        Raises:
            ArtifactInvalid: if a form's outputs are wrong.
            ModelError: if a planned form, or every form, fails.
        """
        groups = itertools.groupby(batches, key=size_of)
        if (first := next(((size, list(same)) for size, same in groups), None)) is None:
            return Warmed(1)
        later = ((size, list(same)) for size, same in groups)
        sized = itertools.chain([first], later)
        if len(self._loaded) > 1 and self._stored is None and self._measured is None:
            key = (self._key, tuple(self._loaded))  # another replica may have lost a form
            # The measuring replica consumes all batches, and has warmed the forms that it chooses.
            self._measured = self._measurements.get(
                key, lambda: self._measure(sized, between), between
            )
            self._steps = self._measured.steps
            LOG.info(
                "plan_measured",
                processor=str(self._processor),
                steps={step.up_to: str(step.form) for step in self._steps},
            )
        self._close_unused()
        if self._measured is None:
            return self._warm(sized, between)
        largest = self._measured.largest
        warmed = self._warm(itertools.takewhile(lambda each: each[0] <= largest, sized), between)
        return Warmed(largest, warmed.seconds)

    def shares(self, other: Backend) -> bool:
        return (
            isinstance(other, PlannedBackend)
            and self._steps == other._steps
            and self._loaded.keys() == other._loaded.keys()
            and all(
                part.backend.shares(other._loaded[form].backend)
                for form, part in self._loaded.items()
            )
        )

    def run(self, inputs: Arrays) -> Arrays:
        return self._at(size_of(inputs)).run(inputs)

    def stage(self, shapes: Mapping[str, Sequence[int]]) -> Arrays:
        return self._launching(next(iter(shapes.values()))[0]).stage(shapes)

    def launch(self, inputs: Arrays) -> Launched:
        return self._launching(size_of(inputs)).launch(inputs)

    def serving(self) -> Serving:
        parts = self._loaded.values()
        launches = bool(parts) and all(part.backend.serving().launches for part in parts)
        return dataclasses.replace(self._served(), launches=launches, prefetches=launches)

    def _served(self) -> Serving:
        steps = tuple(ServedStep(step.up_to, str(step.form)) for step in self._steps)
        if self._measured is not None:
            return Serving(steps, str(self._processor), "server", self._measured.median_us)
        if self._stored is not None:
            return Serving(steps, str(self._processor), "export")
        return Serving((ServedStep(None, steps[0].form),) if steps else ())

    def close(self) -> None:
        for part in self._loaded.values():
            close_safely(part.backend)
        self._loaded = {}

    def _at(self, size: int) -> Backend:
        """The backend for batches of this size."""
        part = self._loaded.get(form_at(self._steps, size)) if self._steps else None
        if part is None:
            raise ReplicaError("bug: the backend runs although it is not loaded")
        return part.backend

    def _launching(self, size: int) -> LaunchingBackend:
        return cast(LaunchingBackend, self._at(size))  # as every part reports

    def _load(self, forms: Sequence[Form]) -> list[str]:
        """Load the usable forms; drop the others, and return the reasons."""
        problems = []
        for form in forms:
            part = self._parts[form]
            try:
                part.backend.load()
            except (VariantUnusable, DoesNotFit) as error:
                if isinstance(error, DoesNotFit) and not self._loaded:
                    raise
                LOG.warning("variant_unusable", form=str(form), reason=str(error))
                problems.append(str(error))
                del self._parts[form]
            else:
                self._loaded[form] = part
        return problems

    def _warm(self, sized: Sized, between: Between) -> Warmed:
        """Warm the form for each size, and replay the golden examples on it."""
        growing, proved = Growing(), set[Form]()
        times: dict[int, dict[int, float]] = {}
        for size, batches in sized:
            form = form_at(self._steps, size)
            part = self._loaded[form]
            if form not in proved and size > 1:
                part.golden.replay_at(part.backend, 1, between)
            proved.add(form)
            same = _worth_it(part, batches, growing)
            seconds = _warm_at(part, size, same, between, growing)
            for length, took_s in seconds.items():
                times.setdefault(length, {})[size] = took_s
            if not growing.ended(size, seconds):
                break
        return Warmed(growing.largest, times)

    def _measure(self, sized: Sized, between: Between) -> Measured:
        """Run a contest: warm every form at ascending sizes, time all in turns, and choose.

        A form that fails is dropped while others remain. A slow form that has clearly lost at a
        size does not run at larger sizes.
        """
        growing = Growing()
        rounds: dict[int, dict[Form, list[float]]] = {}
        contestants = list(self._loaded)
        for size, batches in sized:
            same = _worth_it(self._loaded[contestants[0]], batches, growing)
            seconds: dict[int, float] = {}  # the fastest form's, by length
            for form in tuple(contestants):
                part = self._loaded[form]
                try:
                    for length, took_s in _warm_at(part, size, same, between, growing).items():
                        seconds[length] = min(took_s, seconds.get(length, took_s))
                except ModelError as error:
                    if len(self._loaded) == 1:
                        raise
                    LOG.error("form_dropped", form=str(form), problem=str(error))
                    close_safely(self._loaded.pop(form).backend)
                    for measured in rounds.values():
                        measured.pop(form, None)
                    contestants.remove(form)
            runs = {form: _runner(self._loaded[form].backend, same) for form in contestants}
            threads = self._processor.threads if self._processor.kind == "cpu" else None
            taken = take_turns(runs, TIMED, between, threads, enough=is_decided).seconds
            rounds[size] = {f: [t / len(same) for t in times] for f, times in taken.items()}
            quickest_s = min(min(times) for times in taken.values())
            if not growing.ended(size, {0: quickest_s} if 0 in seconds else seconds):
                break
            contestants = remaining(taken)
        steps = self._choose(rounds, tuple(self._loaded))
        return Measured(steps, _medians_us(rounds), growing.largest)

    def _close_unused(self) -> None:
        used = {step.form for step in self._steps}
        for form in [form for form in self._loaded if form not in used]:
            close_safely(self._loaded.pop(form).backend)


def _worth_it(part: Part, batches: Sequence[Arrays], growing: Growing) -> list[Arrays]:
    """The batches of lengths that are worth running at their size."""
    return [batch for batch in batches if part.golden.length(batch) not in growing.done]


def _warm_at(
    part: Part, size: int, same: Sequence[Arrays], between: Between, growing: Growing
) -> dict[int, float]:
    """Warm a form at one size and replay the golden examples on it.

    Returns:
        length -> seconds of a forward.
    """
    part.backend.warm_up(same, between)
    return part.golden.replay_at(part.backend, size, between, growing.done)


def _runner(backend: Backend, batches: Sequence[Arrays]) -> Callable[[], object]:
    return lambda: [backend.run(batch) for batch in batches]


def _medians_us(rounds: Rounds) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for size, taken in rounds.items():
        for form, times in taken.items():
            found.setdefault(str(form), {})[size] = round(statistics.median(times) * 1e6, 1)
    return found
