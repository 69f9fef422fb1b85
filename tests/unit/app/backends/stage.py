"""Planned backends of fakes, whose forwards take as long as a test says."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np

from app.backends.fake import FakeBackend
from app.backends.golden import Golden
from app.backends.planned import Candidate, Measurements, PlannedBackend
from app.types import Array, Arrays
from models.plan import Form, Step
from models.tensors import Tolerance
from models.timing import WARM_RUNS
from tests.unit.models.manifests import CLOSE, XEON, example, make_manifest
from tests.unit.models.stopwatch import Stopwatch

SIZES = (1, 2, 4, 8)
# Runs of a form that is warmed and replayed at SIZES, but not timed.
UNTIMED_RUNS = WARM_RUNS * len(SIZES) + len(SIZES)


def batch(size: int) -> Arrays:
    """Items 1, 2 ... size."""
    return {"x": np.arange(1, size + 1, dtype=np.float32).reshape(size, 1)}


def golden(tolerance: Tolerance = CLOSE) -> Golden:
    """One example: x = 1 -> value = 2."""
    one = np.ones(1, np.float32)
    return Golden(make_manifest(golden=[example({"x": one}, {"value": 2 * one})]), tolerance)


class Stage:
    """Several planned backends of one process.

    Args:
        watch: runs while a forward does.

    Attributes:
        fakes: form -> its backend.
        parts: what planned backends are made of.
    """

    def __init__(self, watch: Stopwatch) -> None:
        self.fakes: dict[Form, FakeBackend] = {}
        self.parts: dict[Form, Candidate] = {}
        self._watch = watch
        self._measurements = Measurements()

    def add(
        self,
        form: Form,
        cost_s: Callable[[int], float] | float = 1e-3,
        *,
        load_error: Exception | None = None,
        answer: Callable[[Array], Array] = lambda x: x * 2,
        tolerance: Tolerance = CLOSE,
    ) -> FakeBackend:
        """A form, the time of its forwards by size, and its answers."""

        def script(inputs: Arrays) -> Arrays:
            size = len(inputs["x"])
            self._watch.now += cost_s(size) if callable(cost_s) else cost_s
            return {"value": answer(inputs["x"])}

        self.fakes[form] = FakeBackend(script, load_error)
        self.parts[form] = Candidate(self.fakes[form], golden(tolerance))
        return self.fakes[form]

    def backend(
        self, stored: tuple[Step, ...] | None = None, key: Hashable = "key", *, mixable: bool = True
    ) -> PlannedBackend:
        """Of what was added; not loaded."""
        known = self._measurements
        return PlannedBackend(self.parts, stored, XEON, known, key, mixable=mixable)

    def warm(
        self, stored: tuple[Step, ...] | None = None, key: Hashable = "key", *, mixable: bool = True
    ) -> PlannedBackend:
        """Of what was added; loaded and warmed."""
        backend = self.backend(stored, key, mixable=mixable)
        backend.load()
        backend.warm_up([batch(size) for size in SIZES])
        return backend

    def ran(self, backend: PlannedBackend, size: int) -> Form:
        """Run a batch of this size, and say in which form it ran."""
        before = {form: len(fake.batches) for form, fake in self.fakes.items()}
        np.testing.assert_array_equal(backend.run(batch(size))["value"], batch(size)["x"] * 2)
        (one,) = (form for form, fake in self.fakes.items() if len(fake.batches) > before[form])
        return one

    def timed(self, form: Form) -> bool:
        """Whether its one backend ran more often than warming it takes."""
        return len(self.fakes[form].batches) > UNTIMED_RUNS
