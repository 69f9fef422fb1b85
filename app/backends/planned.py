"""One backend made of one per form: each batch runs in the form that is the fastest at its size."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from app.backends.base import Backend, close_safely
from app.backends.golden import Golden
from app.errors import ReplicaError, VariantUnusable
from app.types import Arrays, ServedStep, Serving
from models.plan import Form, Rounds, Step, choose, form_at, time_interleaved, within_limits
from models.processor import Processor

LOG = structlog.get_logger(__name__)
TIMED_ROUNDS = 9
TIMING_BUDGET_S = 0.5  # per batch size: a large model gets fewer rounds, never fewer than one


@dataclass(frozen=True, slots=True)
class Part:
    """A form that may serve.

    Attributes:
        backend: runs it.
        golden: the examples, against the tolerance of its variant.
        holds_gil: whether a forward stops the whole process, so that only short ones may be used.
    """

    backend: Backend
    golden: Golden
    holds_gil: bool = False


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

    def get(self, key: Hashable, measure: Callable[[], Measured]) -> Measured:
        """What is known, else what `measure` finds; others wait so long."""
        with self._lock:
            if key not in self._found:
                self._found[key] = measure()
            return self._found[key]


class PlannedBackend:
    """Dispatches by batch size; see `app.backends.base.Backend`.

    It follows the steps that it is given. Where it is given none, or one of their forms cannot be
    used here, it loads every form, times them while it is warmed, and keeps the fastest.

    Args:
        parts: form -> its backend, in the order of preference.
        steps: what export measured on such a processor; None: measure.
        processor: what it runs on.
        measurements: where measured steps are kept.
        key: what is measured: artifact, selection and kind of processor.
    """

    def __init__(
        self,
        parts: Mapping[Form, Part],
        steps: tuple[Step, ...] | None,
        processor: Processor,
        measurements: Measurements,
        key: Hashable,
    ) -> None:
        self._parts = dict(parts)
        self._stored = steps
        self._steps: tuple[Step, ...] = steps or ()
        self._processor = processor
        self._measurements = measurements
        self._key = key
        self._loaded: dict[Form, Part] = {}
        self._measured: Measured | None = None

    def load(self) -> None:
        """See `Backend`.

        Raises:
            VariantUnusable: if no form can be used here.
        """
        planned = {step.form for step in self._stored or ()}
        refusals = self._load([form for form in self._parts if form in planned])
        if not planned or planned - self._loaded.keys():  # no plan holds: whatever there is joins
            self._stored = None
            refusals += self._load([form for form in self._parts if form not in self._loaded])
            self._loaded = dict(self._parts)  # in the order of preference again
        if not self._loaded:
            raise VariantUnusable("; ".join(dict.fromkeys(refusals)))
        if not self._steps or any(step.form not in self._loaded for step in self._steps):
            self._steps = (Step(up_to=1, form=next(iter(self._loaded))),)

    def warm_up(self, batches: Sequence[Arrays]) -> None:
        """See `Backend`; replays the golden examples on every form, and measures where it must."""
        sizes = sorted({_size(batch) for batch in batches})
        for form, part in self._loaded.items():
            part.backend.warm_up(batches)
            part.golden.replay(part.backend, sizes)
            LOG.debug("form_warm", form=str(form))
        if self._stored is None and len(self._loaded) > 1 and batches:
            key = (self._key, tuple(self._loaded))  # another replica may have lost a form
            self._measured = self._measurements.get(key, lambda: self._measure(batches))
            self._steps = self._measured.steps
            LOG.info(
                "plan_measured",
                processor=str(self._processor),
                steps={step.up_to: str(step.form) for step in self._steps},
            )
        self._close_unused()

    def run(self, inputs: Arrays) -> Arrays:
        """See `Backend`."""
        part = self._loaded.get(form_at(self._steps, _size(inputs))) if self._steps else None
        if part is None:
            raise ReplicaError("bug: the backend runs although it is not loaded")
        return part.backend.run(inputs)

    def serving(self) -> Serving:
        """See `Backend`."""
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

    def _load(self, forms: Sequence[Form]) -> list[str]:
        """Load what can be used here; what refuses is dropped, and its reasons are returned."""
        refusals = []
        for form in forms:
            part = self._parts[form]
            try:
                part.backend.load()
            except VariantUnusable as error:
                LOG.warning("variant_unusable", form=str(form), reason=str(error))
                refusals.append(str(error))
                del self._parts[form]
            else:
                self._loaded[form] = part
        return refusals

    def _measure(self, batches: Sequence[Arrays]) -> Measured:
        by_size: dict[int, list[Arrays]] = {}
        for batch in batches:
            by_size.setdefault(_size(batch), []).append(batch)
        rounds: dict[int, dict[Form, list[float]]] = {}
        for size, same in sorted(by_size.items()):
            runs = {form: _runner(part.backend, same) for form, part in self._loaded.items()}
            taken = time_interleaved(runs, TIMED_ROUNDS, TIMING_BUDGET_S)
            rounds[size] = {form: [t / len(same) for t in times] for form, times in taken.items()}
        holds_gil = [form for form, part in self._loaded.items() if part.holds_gil]
        allowed = within_limits(rounds, holds_gil)
        steps = choose(allowed, tuple(self._loaded)) or choose(rounds, tuple(self._loaded))
        return Measured(steps, _medians_us(rounds))

    def _close_unused(self) -> None:
        used = {step.form for step in self._steps}
        for form in [form for form in self._loaded if form not in used]:
            close_safely(self._loaded.pop(form).backend)


def _runner(backend: Backend, batches: Sequence[Arrays]) -> Callable[[], object]:
    return lambda: [backend.run(batch) for batch in batches]


def _medians_us(rounds: Rounds) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for size, taken in rounds.items():
        for form, times in taken.items():
            found.setdefault(str(form), {})[size] = round(statistics.median(times) * 1e6, 1)
    return found


def _size(batch: Arrays) -> int:
    return int(next(iter(batch.values())).shape[0])
