"""One setting, in a process of its own: measures whenever it is told to, and says items/s.

    python -m tests.devices.child KIND REPLICAS CORES

KIND is `engine` (requests of one item, through admission, batcher and replicas), `raw` (forwards
in threads, nothing else), `pipeline` (two stages on two CPU devices, parts of a batch behind each
other) or `in-turn` (the same stages, one after the other). Each line on stdin is a round of so many
seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from app.backends.base import WarmUp
from app.backends.devices import compute_with
from app.backends.pipeline import Pipeline, Stage
from app.engine.batch_policy import BatchLimits
from app.engine.batch_runner import Contract
from app.engine.clock import LoopClock
from app.engine.engine import Engine, EngineConfig
from app.engine.replica import Replica
from app.metrics import Metrics
from app.types import Arrays, Device, Item, ModelId, Serving
from models.runtimes.forms import StagedForm
from models.system.quiet import DEPRECATIONS, ignore_warnings
from models.timing import WARM_RUNS, time_interleaved

MODEL = ModelId("products", 1)
SIDE, PRODUCTS, BATCH = 256, 12, 32
PARTS = (1, 2, 4, 8, 16)
AHEAD = 4  # batches for each replica that are in the engine at once


class Products(torch.nn.Module):
    """float32 [n, 1] -> [n]: for each item a chain of products of 256 x 256 matrices.

    An item is some 201 million multiplications and additions, on matrices that fit into a cache.
    """

    def __init__(self) -> None:
        super().__init__()
        self.start = torch.nn.Buffer(torch.eye(SIDE))
        self.products = PRODUCTS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        product = self.start + x.unsqueeze(2) * 0.0
        for _ in range(self.products):
            product = torch.bmm(product, product)
        return product[:, 0, 0] * x[:, 0]


def network() -> torch.nn.Module:
    """The model, scripted."""
    script: Callable[..., torch.nn.Module] = torch.jit.script  # untyped in torch
    return script(Products().eval())


class Begin(torch.nn.Module):
    """The first half of the products: [n, 1] -> [n, 256, 256], [n, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.start = torch.nn.Buffer(torch.eye(SIDE))
        self.products = PRODUCTS // 2

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See the class."""
        product = self.start + x.unsqueeze(2) * 0.0
        for _ in range(self.products):
            product = torch.bmm(product, product)
        return product, x


class End(torch.nn.Module):
    """The second half: [n, 256, 256], [n, 1] -> [n]."""

    def __init__(self) -> None:
        super().__init__()
        self.products = PRODUCTS - PRODUCTS // 2

    def forward(self, product: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        for _ in range(self.products):
            product = torch.bmm(product, product)
        return product[:, 0, 0] * x[:, 0]


class Backend:
    """The network on the CPU; see `app.backends.base.Backend`."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def load(self) -> None:
        """See `Backend`."""

    def warm_up(self, batches: object, between: object = None) -> WarmUp:
        """See `Backend`."""
        return WarmUp(1)

    def shares(self, other: object) -> bool:
        """See `Backend`."""
        return False

    def run(self, inputs: Arrays) -> Arrays:
        """See `Backend`."""
        with torch.inference_mode():
            return {"y": self._module(torch.from_numpy(inputs["x"])).numpy()}

    def serving(self) -> Serving:
        """See `Backend`."""
        return Serving(())

    def close(self) -> None:
        """See `Backend`."""


class Served:
    """An engine over so many replicas of one thread each."""

    def __init__(self, module: torch.nn.Module, replicas: int) -> None:
        self._replicas = [
            Replica(f"cpu#{n}", Device("cpu"), lambda: compute_with(1)) for n in range(replicas)
        ]
        self._module = module
        config = EngineConfig(BatchLimits(BATCH, 0.0), 10_000, 0, None)
        self._engine = Engine(self._replicas, LoopClock(), Metrics(), config)
        self._numbers = itertools.count()
        self.done = 0

    async def open(self) -> None:
        """Install the network everywhere."""
        for replica in self._replicas:
            replica.open()
            await replica.install(MODEL, partial(Backend, self._module))
        contract = Contract(("y",), lambda _: None, finish=lambda outputs: outputs)
        self._engine.publish(MODEL, "products", contract)
        for _ in range(AHEAD * BATCH * len(self._replicas)):
            self._ask()

    def _ask(self) -> None:
        x = np.array([next(self._numbers)], np.float32)  # no two are equal
        submission = self._engine.submit(MODEL, [Item({"x": x})], self._engine.now() + 1e6)

        def settled() -> None:
            submission.result()
            self.done += 1
            self._ask()

        submission.when_settled(settled)


async def engine(replicas: int) -> None:
    """Rounds with the engine."""
    served = Served(network(), replicas)
    await served.open()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        await asyncio.sleep(0.2)  # what waited in the pause is done
        before, began = served.done, time.perf_counter()
        await asyncio.sleep(float(line))
        while served.done == before:  # a busy machine
            await asyncio.sleep(0.01)
        rate = (served.done - before) / (time.perf_counter() - began)
        sys.stdout.write(f"{rate}\n")
        sys.stdout.flush()


def raw(replicas: int) -> None:
    """Rounds of bare forwards: what the cores hold."""
    module, x = network(), torch.randn(BATCH, 1)
    for line in sys.stdin:
        counts, until = [0] * replicas, time.perf_counter() + float(line)

        def work(number: int, counts: list[int] = counts, until: float = until) -> None:
            compute_with(1)
            with torch.inference_mode():
                while time.perf_counter() < until:
                    module(x)
                    counts[number] += BATCH

        threads = [threading.Thread(target=work, args=(n,)) for n in range(replicas)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.stdout.write(f"{sum(counts) / (time.perf_counter() - began)}\n")
        sys.stdout.flush()


def staged(*, at_once: bool) -> None:
    """Rounds of batches through two stages, which are scripts; one thread each."""
    script: Callable[..., torch.nn.Module] = torch.jit.script  # untyped in torch
    halves = [script(half.eval()) for half in (Begin(), End())]
    device, x = torch.device("cpu"), torch.arange(1.0, BATCH + 1).unsqueeze(1)
    pipeline = Pipeline([Stage(half, device) for half in halves], partial(compute_with, 1))
    for _ in range(WARM_RUNS):
        for parts in PARTS:
            pipeline.run([x], parts)
    taken = time_interleaved({parts: partial(pipeline.run, [x], parts) for parts in PARTS}, 5)
    best = min(PARTS, key=lambda parts: statistics.median(taken[parts]))
    for line in sys.stdin:
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < float(line):
            with torch.inference_mode():
                made = pipeline.run([x], best) if at_once else StagedForm(halves)(x)
            if not torch.equal(made, x[:, 0]):
                raise SystemExit("wrong answers")
            count += BATCH
        sys.stdout.write(f"{count / (time.perf_counter() - began)}\n")
        sys.stdout.flush()


def main() -> None:
    """Do what the command line says."""
    kind, replicas, cores = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    torch.set_num_threads(1)
    for message in DEPRECATIONS:
        ignore_warnings(message=message)
    if kind == "engine":
        asyncio.run(engine(replicas))
    elif kind == "raw":
        raw(replicas)
    else:
        staged(at_once=kind == "pipeline")


if __name__ == "__main__":
    main()
