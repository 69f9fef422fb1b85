"""A scriptable backend whose device works by itself, as a GPU does; without torch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from app.backends.fake import FakeBackend, Step
from app.errors import ReplicaError
from app.types import Arrays, DeviceTimes, ServedStep, Serving

SLOTS = 2
EXPECTED_S = 1.0  # of a batch: the thread waits for the next one meanwhile, however late it comes


class _Slot:
    """Where a batch lies from when it is put together until its outputs are fetched."""

    def __init__(self) -> None:
        self.inputs: Arrays = {}
        self.future: Future[Arrays] | None = None


class _OnItsWay:
    def __init__(self, backend: LaunchingFake, slot: _Slot) -> None:
        self._backend = backend
        self._slot = slot

    def outputs(self) -> Arrays:
        future, self._slot.future = self._slot.future, None
        assert future is not None, "asked for twice"
        try:
            return future.result()
        finally:
            self._backend.free.append(self._slot)

    @property
    def expected_s(self) -> float:
        return EXPECTED_S

    @property
    def is_done(self) -> bool:
        return self._slot.future is None or self._slot.future.done()

    def times(self) -> DeviceTimes:
        return DeviceTimes(0.001, 0.002, 0.003)


class LaunchingFake(FakeBackend):
    """A thread is its device, which computes one batch after the other.

    It reads a staged batch when it computes it, not before: overwriting one meanwhile gives
    wrong answers.

    Args:
        script: see `FakeBackend`.

    Attributes:
        most_launched: batches that it had at once.
    """

    def __init__(self, script: Step | None = None) -> None:
        super().__init__(script)
        self.free = [_Slot() for _ in range(SLOTS)]
        self.most_launched = 0
        self._works: queue.SimpleQueue[tuple[Arrays, Future[Arrays]]] = queue.SimpleQueue()
        threading.Thread(target=self._compute, daemon=True).start()

    def run(self, inputs: Arrays) -> Arrays:
        """See `Backend`; on this device too, after what was launched before."""
        future: Future[Arrays] = Future()
        self._works.put((inputs, future))
        return future.result()

    def stage(self, shapes: Mapping[str, Sequence[int]]) -> Arrays:
        """See `LaunchingBackend`."""
        if not self.free:
            raise ReplicaError("a third batch was staged")
        slot = self.free[-1]
        slot.inputs = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
        return slot.inputs

    def launch(self, inputs: Arrays) -> _OnItsWay:
        """See `LaunchingBackend`."""
        slot = self.free.pop()
        assert inputs.keys() == slot.inputs.keys()
        assert all(inputs[name] is slot.inputs[name] for name in inputs)
        self.most_launched = max(self.most_launched, SLOTS - len(self.free))
        slot.future = Future()
        self._works.put((slot.inputs, slot.future))
        return _OnItsWay(self, slot)

    def serving(self) -> Serving:
        """See `Backend`."""
        return Serving((ServedStep(None, "fake"),), launches=True, prefetches=True)

    def _compute(self) -> None:
        while True:
            inputs, future = self._works.get()
            try:
                made = super().run(inputs)
                future.set_result({name: array.copy() for name, array in made.items()})
            except BaseException as error:  # raised where the batch is awaited
                future.set_exception(error)
