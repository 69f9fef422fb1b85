"""An engine whose batches take the manual clock's time, on several replicas at once; no threads."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from app.backends.base import Backend
from app.backends.fake import FakeBackend
from app.engine.batch_policy import BatchLimits
from app.engine.batch_runner import Report
from app.engine.clock import ManualClock
from app.engine.engine import Engine, EngineConfig
from app.engine.replica import Replica
from app.engine.replica_thread import Later
from app.errors import DeadlineExceeded, Overloaded, ReplicaError
from app.metrics import Metrics
from app.types import Device, ModelId, Serving
from tests.unit.app.engine.harness import CONTRACT, item, turns, value_of

T = TypeVar("T")
Seconds = Callable[[int], float]  # of a batch, by its number of items
PATIENT = 1e6
NEVER = float("inf")


@dataclass
class Defaults:
    """Of `simulation`, for a test module that wants all its tests otherwise."""

    prepare_s: float = 0.0


DEFAULT = Defaults()


@dataclass(frozen=True)
class Batch:
    """One that a replica has begun, or is to begin once it has ended another."""

    model: str
    numbers: tuple[float, ...]  # what was asked
    began: float
    ends: float

    @property
    def items(self) -> int:
        """How many."""
        return len(self.numbers)


class SimulatedReplica(Replica):
    """Computes at once, and is done when the clock says so.

    Args:
        name: of the replica.
        clock: says when it is done.
        seconds: of a batch, by model, on a CPU.
        speed: of its device: 1 for a CPU, else it is a GPU.

    Attributes:
        around_s: overhead of every batch.
        prepare_s: that it takes to bring a batch to the device, which goes on meanwhile; 0: it
            takes one batch at a time.
        broken: whatever it runs fails from now on.
    """

    def __init__(
        self, name: str, clock: ManualClock, seconds: Mapping[str, Seconds], speed: float = 1.0
    ) -> None:
        super().__init__(name, Device("cpu" if speed == 1 else "cuda"))
        self.speed = speed
        self.broken = False
        self.ran: list[Batch] = []
        self.around_s = 0.0
        self.prepare_s = 0.0
        self._ends: deque[float] = deque()
        self._clock = clock
        self._seconds = seconds

    def start(
        self,
        model: ModelId,
        work: Callable[[Backend], T | Later[T]],
        done: Callable[[T], None],
        failed: Callable[[BaseException], T],
        block_s: float = 0.0,
    ) -> None:
        backend, began = FakeBackend(), self._clock.now()
        result = work(backend)
        assert not isinstance(result, Later)
        numbers = tuple(backend.batches[0])
        seconds = self._seconds[model.name](len(numbers)) / self.speed
        if isinstance(result, Report):
            result = replace(result, compute_s=seconds, prepared_s=self.prepare_s)
        ready = began + self.prepare_s + self.around_s
        computes = max([ready, *self._ends])
        ends = computes + seconds
        self._overlaps = self.models[model].prefetches
        self._running.append(lambda fault: done(failed(fault)))
        self._ends.append(ends)
        self.busy = True
        self.ran.append(Batch(model.name, numbers, computes if self.prepare_s else began, ends))

        def finish() -> None:
            self._ends.popleft()
            self._running.popleft()
            self.busy = bool(self._ends)
            done(failed(ReplicaError("the device is broken")) if self.broken else result)

        self._clock.call_at(ends, finish)

    @property
    def ends(self) -> float:
        """When it will next be done with a batch."""
        return self._ends[0] if self._ends else NEVER


@dataclass
class Asked:
    """A request of one item; moments are the clock's."""

    model: str
    number: float  # its right answer is twice that
    at: float
    done_at: float | None = None
    expired: bool = False
    answer: float | str | None = None  # the value, or the code of what it failed with
    retry_after_s: float | None = None  # not None: it was refused


@dataclass
class Simulation:
    """Replicas, and what was asked."""

    engine: Engine
    clock: ManualClock
    metrics: Metrics
    replicas: Sequence[SimulatedReplica]
    asked: list[Asked] = field(default_factory=list)
    _coming: list[tuple[float, int, str, float]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def ask(self, model: str, within: float = PATIENT) -> Asked:
        """A request of one new item, now."""
        number = float(next(self._numbers))
        made = Asked(model, number, self.clock.now())
        self.asked.append(made)
        deadline = made.at + within
        try:
            submission = self.engine.submit(ModelId(model, 1), [item(number)], deadline)
        except Overloaded as refused:
            made.retry_after_s = refused.retry_after_s
            return made

        def settled() -> None:
            made.done_at = self.clock.now()
            try:
                made.answer = value_of(submission.result().outcomes[0])
            except DeadlineExceeded:
                made.expired = True

        submission.when_settled(settled)
        return made

    def ask_at(self, when: float, model: str, within: float = PATIENT) -> None:
        """A request that comes later."""
        heapq.heappush(self._coming, (when, next(self._numbers), model, within))

    async def run(self, seconds: float) -> None:
        """Turn the clock on, with all that happens on the way."""
        until = self.clock.now() + seconds
        while True:
            await turns(3)
            comes = self._coming[0][0] if self._coming else NEVER
            ends = min(replica.ends for replica in self.replicas)
            self.clock.advance(min(comes, ends, until) - self.clock.now())
            if min(comes, ends) > until:
                return
            if comes <= ends:
                _, _, model, within = heapq.heappop(self._coming)
                self.ask(model, within)

    def used_s(self, model: str, *replicas: int) -> float:
        """Device time of a model until now, on these replicas or on all."""
        now, used_s = self.clock.now(), 0.0
        for index in replicas or range(len(self.replicas)):
            of_model = [each for each in self.replicas[index].ran if each.model == model]
            used_s += sum(min(each.ends, now) - each.began for each in of_model)
        return used_s


def simulation(
    seconds: Mapping[str, Seconds],
    serves: Sequence[Sequence[str]],
    max_batch_size: int = 8,
    expected: Mapping[str, Seconds] | None = None,
    *,
    speeds: Sequence[float] | None = None,
    prepare_s: float | None = None,
    unmeasured: Sequence[int] = (),
) -> Simulation:
    """A simulation; the engine knows beforehand what batches may be expected to take.

    Args:
        seconds: what a batch takes, by model.
        serves: the models of each replica.
        max_batch_size: of every model.
        expected: what the engine is told of that; None: the same.
        speeds: of the replicas' devices, 1 for CPUs; None: 1. The engine is told of these, too.
        prepare_s: see `SimulatedReplica`.
        unmeasured: replicas of which the engine is told nothing.
    """
    clock = ManualClock()
    prepare_s = DEFAULT.prepare_s if prepare_s is None else prepare_s
    replicas = [
        SimulatedReplica(f"fake#{at}", clock, seconds, speed)
        for at, speed in enumerate(speeds or [1.0] * len(serves))
    ]
    config = EngineConfig(BatchLimits(max_batch_size, 0.0), 100_000, 0, None)
    metrics = Metrics()
    engine = Engine([*replicas], clock, metrics, config)
    sizes = [1 << power for power in range(max_batch_size.bit_length())]
    for replica, models in zip(replicas, serves, strict=True):
        replica.prepare_s = prepare_s
        serving = Serving((), prefetches=prepare_s > 0)
        replica.models = {ModelId(model, 1): serving for model in models}
    for model, of_batch in (expected or seconds).items():
        measured = {
            replica.name: {0: {size: of_batch(size) / replica.speed for size in sizes}}
            for at, replica in enumerate(replicas)
            if at not in unmeasured
        }
        engine.publish(ModelId(model, 1), model, CONTRACT, measured)
    return Simulation(engine, clock, metrics, replicas)
