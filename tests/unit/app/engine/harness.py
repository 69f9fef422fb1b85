"""An engine over scriptable backends, with a clock that is turned by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from app.backends.base import Backend
from app.backends.fake import FakeBackend, Step
from app.engine.batch_policy import BatchLimits
from app.engine.batch_runner import Contract
from app.engine.clock import ManualClock
from app.engine.engine import Engine, EngineConfig
from app.engine.replica import Replica
from app.engine.shared_tier import SharedTier
from app.engine.submission import Submission
from app.errors import ItemFailed, ModelError, ReplicaError
from app.metrics import Metrics
from app.telemetry.tracing import Tracing
from app.types import Answer, Arrays, Device, Item, ModelId, Outcome

MODEL = ModelId("double", 1)
POISON = 13.0  # scripts fail on this value
FAR = 1e9  # seconds: a deadline that never comes


def item(value: float, size: int = 1) -> Item:
    """An item of `size` equal numbers; its right answer is twice the value."""
    return Item({"x": np.full(size, value, np.float32)})


def values(answer: Answer) -> list[float | str]:
    """Per outcome the first number of its output, or the code of its failure."""
    return [value_of(outcome) for outcome in answer.outcomes]


def value_of(outcome: Outcome) -> float | str:
    if isinstance(outcome, ItemFailed):
        return outcome.code
    return float(outcome["value"].reshape(-1)[0])


def fail_on_poison(inputs: Arrays) -> Arrays | None:
    """A model that fails on any batch with a poisoned item in it."""
    if (inputs["x"] == POISON).any():
        raise ModelError("poisoned")
    return None


def replay(backend: Backend) -> None:
    """The probe: 1 must give 2."""
    got = backend.run({"x": np.ones((1, 1), np.float32)})
    if got["value"][0, 0] != 2:
        raise ReplicaError("golden example fails")


@dataclass
class Defaults:
    """Of `rig`, for a test module that wants all its tests otherwise."""

    block_s: float = 0.0
    batch_s: Mapping[int, float] = field(default_factory=dict)
    backend: Callable[[Step | None], FakeBackend] = FakeBackend
    tier: Callable[[], SharedTier | None] = lambda: None


DEFAULT = Defaults()
CONTRACT = Contract(
    ("value",), replay, finish=lambda outputs: outputs, layout={"value": ("<f4", (-1,))}
)


@dataclass
class Rig:
    """What a test works with."""

    engine: Engine
    clock: ManualClock
    metrics: Metrics
    backends: list[FakeBackend]
    replicas: list[Replica]
    faults: list[tuple[str, ReplicaError]] = field(default_factory=list)

    @property
    def backend(self) -> FakeBackend:
        return self.backends[0]

    def start(self, *numbers: float, within: float = FAR) -> asyncio.Task[Answer]:
        """A request for these numbers, as a task of its own."""
        items = [item(number) for number in numbers]
        work = self.engine.predict(MODEL, items, self.clock.now() + within)
        return asyncio.create_task(work)

    def submit(self, *numbers: float) -> Submission:
        """A request as the reader of a socket makes it: at once, without a task."""
        items = [item(number) for number in numbers]
        return self.engine.submit(MODEL, items, self.clock.now() + FAR)

    async def ask(self, *numbers: float, within: float = FAR) -> list[float | str]:
        return values(await self.start(*numbers, within=within))

    def metric(self, name: str, **labels: str) -> float:
        full = {"model": MODEL.name, "version": str(MODEL.version), **labels}
        return self.metrics.registry.get_sample_value(name, full) or 0.0


@contextlib.asynccontextmanager
async def rig(
    *,
    scripts: Sequence[Step | None] = (None,),
    max_batch_size: int = 8,
    batch_wait_s: float = 0.0,
    gather_s: float = 0.0,
    queue_limit: int = 100,
    queue_limit_bytes: int = 10**9,
    cache_bytes: int = 0,
    cache_ttl_s: float | None = None,
    block_s: float | None = None,
    batch_s: Mapping[int, float] | None = None,
    tier: SharedTier | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[Rig]:
    """An engine with one replica per script, and the model `double` on each.

    What the engine is told of its batches' times is `batch_s`, by size.
    """
    clock, metrics = ManualClock(), Metrics()
    replicas = [Replica(f"fake#{index}", Device("cpu")) for index in range(len(scripts))]
    config = EngineConfig(
        BatchLimits(max_batch_size, batch_wait_s, gather_s),
        queue_limit,
        cache_bytes,
        cache_ttl_s,
        DEFAULT.block_s if block_s is None else block_s,
        queue_limit_bytes,
    )
    engine = Engine(replicas, clock, metrics, config, tracing, tier or DEFAULT.tier())
    backends = [DEFAULT.backend(script) for script in scripts]
    made = Rig(engine, clock, metrics, backends, replicas)
    engine.watch_faults(lambda replica, fault: made.faults.append((replica.name, fault)))
    for replica, backend in zip(replicas, backends, strict=True):
        replica.open()
        await replica.install(MODEL, _give(backend))
    measured = DEFAULT.batch_s if batch_s is None else batch_s
    engine.publish(MODEL, "digest:fake", CONTRACT, {each.name: {0: measured} for each in replicas})
    try:
        yield made
    finally:
        for backend in backends:
            backend.gate.set()
        for replica in replicas:
            await replica.close(5.0)


async def turns(count: int = 20) -> None:
    """Let the event loop do what it holds."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Wait for what another thread brings about."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.001)


def _give(backend: FakeBackend) -> Callable[[], Backend]:
    return lambda: backend
