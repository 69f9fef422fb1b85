"""`python -m tests.devices.gpu`: what the server makes of a GPU, beside bare forwards on it.

For each model and batch size forwards whose inputs are on the device already; then the engine with
batches of the best size, in this process, without HTTP; a trace of that, and how much of the copies
it hides; what pinned memory and a batch ahead gain; and bare forwards of every form, also with
channels last and captured as a CUDA graph. Of models of texts, tokens/s at several lengths. All of
them in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from app.backends.cuda import CudaStreams
from app.backends.factory import TorchBackends
from app.backends.forward import FormBackend
from app.backends.selection import Preference, select
from app.engine.batch_policy import BatchLimits
from app.engine.batch_runner import Contract
from app.engine.clock import LoopClock
from app.engine.engine import Engine, EngineConfig
from app.engine.replica import Replica
from app.metrics import Metrics
from app.registry.repository import Artifact, Repository
from app.types import Arrays, Device, Item, ModelId, Serving
from export.cli import main as export
from models.catalog import CATALOG
from models.plan import Form
from models.runtimes.forms import sequence_of
from models.system.quiet import DEPRECATIONS, ignore_warnings
from models.timing import WARM_RUNS
from tests.devices import trace

SIZES = (1, 8, 16, 32, 64)
VARIANTS = "script,bf16,fp16,compiled-cuda"
SETTLE_S = 0.3  # of each setting, before it is timed
LENGTHS = (16, 64, 256)  # tokens
AHEAD = 4  # batches for each replica that are in the engine at once


@dataclass(frozen=True)
class Model:
    """An artifact, where it runs, and items of it."""

    artifact: Artifact
    device: Device
    batch: Arrays  # of all items that are asked for

    @property
    def torch_device(self) -> torch.device:
        """The device, as torch has it."""
        return torch.device(str(self.device))

    def backend(self, variant: str = "script") -> FormBackend:
        """One that is loaded and knows no plan."""
        manifest, form = self.artifact.manifest, Form(variant=variant)
        made = FormBackend(self.artifact.folder, manifest, form, self.device)
        made.load()
        return made

    def rows(self, count: int) -> Arrays:
        """A batch of so many items."""
        return {name: array[:count] for name, array in self.batch.items()}


def synchronize(device: torch.device) -> None:
    """Wait for all of it: what is timed here has no other user."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def raw(model: Model, size: int, seconds: float) -> float:
    """Items/s of bare forwards, one behind the other, whose inputs are on the device."""
    device = model.torch_device
    backend = model.backend()
    forward = backend.open_files(model.artifact.manifest.variants["script"].files, device)
    backend.close()
    tensors = [torch.from_numpy(array).to(device) for array in model.rows(size).values()]
    with torch.inference_mode():
        for _ in range(WARM_RUNS + 2):
            forward(*tensors)
        rate_of(partial(forward, *tensors), device, SETTLE_S)
        return size * rate_of(partial(forward, *tensors), device, seconds)


def rate_of(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Runs/s of work that was run before."""
    synchronize(device)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(4):  # no more than a few are queued
            work()
        synchronize(device)
        count += 4
    return count / (time.perf_counter() - began)


class Served:
    """An engine with one replica, that always has more to do."""

    def __init__(self, model: Model, size: int) -> None:
        self._model = model
        self._size = size
        self._replica = Replica(f"{model.device}#0", model.device)
        config = EngineConfig(BatchLimits(size, 0.0), 10_000, 0, None)
        self._engine = Engine([self._replica], LoopClock(), Metrics(), config)
        count = len(next(iter(model.batch.values())))
        self._items = itertools.cycle(
            [Item({n: a[row] for n, a in model.batch.items()}) for row in range(count)]
        )
        self.done = 0
        self._ends = False

    async def open(self) -> None:
        """Load it, warm it, and ask for the first items."""
        artifact, device = self._model.artifact, self._model.device
        selection = select(artifact.manifest, Preference("script"), {device.kind})
        factory = TorchBackends((device,), self._size, torch.get_num_threads())
        backend = factory.make(
            artifact.folder, artifact.manifest, artifact.digest, selection, device
        )

        def load() -> object:
            backend.load()
            return backend

        def prove(loaded: object, between: Callable[[], None]) -> None:
            backend.warm_up([self._model.rows(self._size)], between)

        self._replica.open()
        await self._replica.install(artifact.id, load, prove)  # type: ignore[arg-type]
        outputs = tuple(spec.name for spec in artifact.manifest.outputs)
        contract = Contract(outputs, lambda _: None, finish=lambda made: made)
        self._engine.publish(artifact.id, "bench", contract)
        for _ in range(AHEAD * self._size):
            self._ask()

    async def measure(self, seconds: float) -> float:
        """Items/s."""
        await asyncio.sleep(SETTLE_S)
        before, began = self.done, time.perf_counter()
        await asyncio.sleep(seconds)
        return (self.done - before) / (time.perf_counter() - began)

    async def close(self) -> None:
        """Ask for no more, and give the memory back."""
        self._ends = True
        await self._engine.drain(60.0)
        await self._replica.close(60.0)

    def _ask(self) -> None:
        if self._ends:
            return
        item = next(self._items)
        submission = self._engine.submit(self._model.artifact.id, [item], self._engine.now() + 1e6)

        def settled() -> None:
            submission.result()
            self.done += 1
            self._ask()

        submission.when_settled(settled)


async def served(model: Model, size: int, seconds: float, file: Path | None = None) -> float:
    """Items/s of the engine; with a file a trace is written of it, which takes time."""
    engine = Served(model, size)
    await engine.open()
    try:
        if file is None:
            return await engine.measure(seconds)
        kinds = [ProfilerActivity.CPU]
        if model.device.kind == "cuda":
            kinds = [ProfilerActivity.CUDA]
        await engine.measure(0.2)
        with profile(activities=kinds) as recorded:
            rate = await engine.measure(seconds)
        recorded.export_chrome_trace(str(file))
        return rate
    finally:
        await engine.close()


@contextlib.contextmanager
def pageable() -> Iterator[None]:
    """Copies from and to memory that the device cannot reach by itself."""

    def host_bytes(_: CudaStreams, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8)

    with mock.patch.object(CudaStreams, "host_bytes", host_bytes):
        yield


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """No batch is given to the device while it runs another one."""
    serving = FormBackend.serving

    def patched(backend: FormBackend) -> Serving:
        return dataclasses.replace(serving(backend), prefetches=False)

    with mock.patch.object(FormBackend, "serving", patched):
        yield


# What the server does on such a device, and what undoes it.
WAYS = {"pinned memory": pageable, "a batch ahead": one_at_a_time}


def forms(model: Model, size: int, rounds: int, seconds: float) -> dict[str, float]:
    """Median items/s of bare forwards by form, in turns; `script` also in other layouts."""
    device, served = model.torch_device, model.artifact.manifest.variants
    batch = [torch.from_numpy(array).to(device) for array in model.rows(size).values()]
    works: dict[str, Callable[[], object]] = {}
    for name, variant in served.items():
        if device.type not in variant.device_kinds:
            continue
        backend = model.backend(name)
        forward = backend.open_files(variant.files, device)
        backend.close()
        works[name] = partial(forward, *batch)
        if name == "script" and isinstance(forward, torch.jit.ScriptModule):
            last = [
                each.to(memory_format=torch.channels_last) if each.ndim == 4 else each
                for each in batch
            ]
            works["script, channels last"] = partial(forward, *last)
            if device.type == "cuda":
                works["script, captured"] = captured(forward, batch)
    rates: dict[str, list[float]] = {name: [] for name in works}
    with torch.inference_mode():
        for work in works.values():
            for _ in range(WARM_RUNS + 2):
                work()
        for _ in range(rounds):
            for name, work in works.items():
                rates[name].append(size * rate_of(work, device, seconds))
    return {name: statistics.median(each) for name, each in rates.items()}


def captured(forward: Callable[..., object], batch: Sequence[torch.Tensor]) -> Callable[[], None]:
    """A forward as a CUDA graph, with its copies in and out of the graph's memory."""
    inputs, graph = [each.clone() for each in batch], torch.cuda.CUDAGraph()
    with torch.inference_mode():
        for _ in range(WARM_RUNS + 2):
            forward(*inputs)
        with torch.cuda.graph(graph):
            outputs = sequence_of(forward(*inputs))

    def run() -> None:
        for target, source in zip(inputs, batch, strict=True):
            target.copy_(source)
        graph.replay()
        for each in outputs:
            each.clone()

    return run


def exported(name: str, folder: Path, device: Device, size: int) -> Model:
    """A model of the catalog; exported into the folder if it is not there."""
    if not (folder / name / "1").exists():
        with redirect_stdout(StringIO()):
            code = export([name, "--variants", VARIANTS, "--out", str(folder)], CATALOG)
        if code:
            raise SystemExit(f"{name} could not be exported")
    artifact = Repository(folder).open(ModelId(name, 1))
    batch = CATALOG[name].random_inputs(np.random.default_rng(1), 2 * AHEAD * size)
    return Model(artifact, device, batch)


def report(model: Model, sizes: Sequence[int], rounds: int, seconds: float, out: Path) -> None:
    """Measure a model, in turns, and print."""
    write, name = sys.stdout.write, model.artifact.id.name
    rates = {size: raw(model, size, seconds / 2) for size in sizes}
    best = max(rates, key=rates.__getitem__)
    found = ", ".join(f"{size}: {rate:,.0f}" for size, rate in rates.items())
    write(f"\n{name}: bare forwards by batch size, items/s: {found}\n")
    pairs = []
    for _ in range(rounds):
        bare = raw(model, best, seconds)
        pairs.append((bare, asyncio.run(served(model, best, seconds))))
    ratios = [engine / bare for bare, engine in pairs]
    bare, engine = (statistics.median(each) for each in zip(*pairs, strict=True))
    write(
        f"{name}: batches of {best}: bare {bare:,.0f}/s, engine {engine:,.0f}/s; "
        f"ratio {statistics.median(ratios):.2f} ({' '.join(f'{each:.2f}' for each in ratios)})"
        f", wanted 0.9\n"
    )
    file = out / f"gpu-{name}.json"
    asyncio.run(served(model, best, min(seconds, 0.5), file))
    for title, copies in trace.read(file).items():
        if not copies.count:
            write(f"{name}: {title}: no copies were recorded ({file})\n")
            continue
        write(
            f"{name}: {title}: {copies.count} copies, {copies.us / 1000:,.1f} ms, "
            f"{copies.hidden:.0%} of that beside a computation ({file})\n"
        )
    if model.device.kind == "cuda":
        for title, without in WAYS.items():
            gains = []
            for _ in range(rounds):
                rate = asyncio.run(served(model, best, seconds))
                with without():
                    gains.append(rate / asyncio.run(served(model, best, seconds)))
            write(f"{name}: {title}: {statistics.median(gains):.2f} times as fast as without\n")
    for size in (1, best) if best > 1 else (best,):
        told = ", ".join(
            f"{form} {each:,.0f}" for form, each in forms(model, size, rounds, seconds / 4).items()
        )
        write(f"{name}: bare forwards of {size} by form, items/s: {told}\n")


def drawn(batch: Arrays, length: int) -> Arrays:
    """Tokens of this length in the range of a batch's; no item is masked."""
    rng = np.random.default_rng(length)
    return {
        name: rng.integers(min(1, array.max()), array.max() + 1, (len(array), length), array.dtype)
        for name, array in batch.items()
    }


def report_lengths(model: Model, size: int, rounds: int, seconds: float) -> None:
    """Measure a model of texts at several lengths, in turns, and print."""
    name, pairs = model.artifact.id.name, dict[int, list[tuple[float, float]]]()
    most = min(
        each.most for spec in model.artifact.manifest.inputs for each in spec.dimensions or ()
    )
    lengths = [each for each in LENGTHS if each <= most]
    for _ in range(rounds):
        for length in lengths:
            texts = dataclasses.replace(model, batch=drawn(model.batch, length))
            pair = raw(texts, size, seconds / 2), asyncio.run(served(texts, size, seconds / 2))
            pairs.setdefault(length, []).append(pair)
    for length, each in pairs.items():
        bare, engine = (length * statistics.median(rates) for rates in zip(*each, strict=True))
        sys.stdout.write(
            f"{name}: batches of {size} of {length} tokens: bare {bare:,.0f} tokens/s, engine "
            f"{engine:,.0f}; ratio {engine / bare:.2f}\n"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.devices.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--models", default="residual,digits")
    parser.add_argument("--sizes", default=",".join(str(size) for size in SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each setting in a round")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="artifacts and traces")
    given = parser.parse_args(arguments)
    kind, _, index = given.device.partition(":")
    if kind == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("gpu: there is no CUDA device here; nothing was measured\n")
        return 1
    for message in DEPRECATIONS:
        ignore_warnings(message=message)
    device = Device(kind, int(index or 0))
    named = torch.cuda.get_device_name(device.index) if kind == "cuda" else "the CPU"
    sys.stdout.write(f"{named}, torch {torch.__version__}\n")
    given.out.mkdir(parents=True, exist_ok=True)
    sizes = [int(size) for size in given.sizes.split(",")]
    for name in given.models.split(","):
        model = exported(name, given.out / "models", device, max(sizes))
        if all(spec.is_fixed for spec in model.artifact.manifest.inputs):
            report(model, sizes, given.rounds, given.seconds, given.out)
        else:
            report_lengths(model, max(sizes), given.rounds, given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
