"""A scriptable backend without torch, to test the layers above the backends.

It answers `value = 2 * x` for inputs of one number per item, so that a test can distinguish the
answers, and runs its script in each run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import numpy as np

from app.backends.base import Backend, Between, WarmUp, size_of
from app.types import Arrays, ServedStep, Serving
from models.timing import nothing

# Gets the inputs of a run; returns its outputs, or None for the backend's outputs. It may block, or
# raise the errors of a real backend.
Step = Callable[[Arrays], Arrays | None]


class FakeBackend:
    """See `app.backends.base.Backend`.

    Args:
        script: called in every run; None for ordinary runs.
        load_error: raised by `load`; None if it loads.

    Attributes:
        batches: the values of `x` of every started run, as lists.
        gate: runs wait for it; initially open. Close it to keep a replica busy.
        calls: names of the called methods, in order.
    """

    def __init__(self, script: Step | None = None, load_error: Exception | None = None) -> None:
        self.script = script
        self.load_error = load_error
        self.batches: list[list[float]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.calls: list[str] = []

    def load(self) -> None:
        self.calls.append("load")
        if self.load_error is not None:
            raise self.load_error

    def warm_up(self, batches: Iterable[Arrays], between: Between = nothing) -> WarmUp:
        self.calls.append("warm_up")
        largest = 1
        for batch in batches:
            largest = size_of(batch)
            for _ in range(3):
                between()
                self.run(batch)
        return WarmUp(largest)

    def shares(self, other: Backend) -> bool:
        return False

    def run(self, inputs: Arrays) -> Arrays:
        self.calls.append("run")
        values = inputs["x"]
        self.batches.append(values.reshape(len(values), -1)[:, 0].tolist())
        self.gate.wait()
        outputs = self.script(inputs) if self.script is not None else None
        return outputs if outputs is not None else {"value": np.asarray(values * 2)}

    def serving(self) -> Serving:
        return Serving((ServedStep(None, "fake"),))

    def close(self) -> None:
        self.calls.append("close")
