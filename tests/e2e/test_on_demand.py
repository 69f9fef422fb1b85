"""A real server with more models than fit: answers, memory and how often a model was there."""

from __future__ import annotations

import asyncio
import bisect
import datetime as dt
import itertools
import math
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from torch import nn

from tests.artifacts import write_artifact
from tests.e2e.server import PLAIN, Server, resident_bytes, running

MODELS, MIB = 300, (5, 50)
BUDGET_MIB = 60 * sum(MIB) // 2  # room for 60 models
SECONDS, RATE = 1200.0, 6.0  # requests/s, in an open loop
SCAN_RATE = 2.0  # requests/s of the scan, from half the time on
MIN_RESIDENT_S = 10.0
HALF_LIFE = 8 * MODELS  # uses, as of the server


class Scaled(nn.Module):
    """Multiplies by a factor; has some MiB of weights."""

    def __init__(self, factor: float, mib: int) -> None:
        super().__init__()
        self.factor = factor
        size = math.isqrt(mib << 18)
        self.weights = nn.Parameter(torch.zeros(size, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x[:, :1].expand(-1, self.weights.shape[0])
        return x * self.factor + (wide @ self.weights).sum(1, keepdim=True)


@dataclass
class Seen:
    """What the callers saw.

    Attributes:
        asked: moments of the requests, and their models.
    """

    asked: list[tuple[float, int]] = field(default_factory=list)
    cold_s: list[float] = field(default_factory=list)
    refused: int = 0
    late: int = 0
    largest_rss: int = 0


def zipf(models: int, seed: int) -> Iterator[int]:
    """Model numbers by Zipf(1.0)."""
    rng = random.Random(seed)
    order = rng.sample(range(models), models)
    weights = list(itertools.accumulate(1 / (1 + rank) for rank in range(models)))
    while True:
        yield order[bisect.bisect(weights, rng.random() * weights[-1])]


def simulated(
    asked: Sequence[tuple[float, int]], mib: Sequence[int], budget: float, *, lru: bool
) -> float:
    """The share of requests whose model would be there, by the server's rule or by plain LRU.

    Loads end at once, and a byte costs the same in each. By the server's rule a model stays for the
    minimal residence.
    """
    uses, last = [0.0] * len(mib), [0] * len(mib)
    since: dict[int, float] = {}  # by model that is there: when it was loaded
    hits = 0  # without the first request for each model
    for now, (seconds, model) in enumerate(asked):
        uses[model] = 1 + uses[model] * 0.5 ** ((now - last[model]) / HALF_LIFE)
        last[model] = now
        hits += now >= len(mib) and model in since
        since.setdefault(model, seconds)
        while sum(mib[each] for each in since) > budget:

            def worth(each: int) -> float:
                faded = uses[each] * 0.5 ** ((now - last[each]) / HALF_LIFE)  # noqa: B023
                return last[each] if lru else faded

            leaving = [each for each in since if lru or seconds - since[each] >= MIN_RESIDENT_S]
            del since[min(leaving, key=worth, default=model)]
    return hits / (len(asked) - len(mib))


async def ask(client: httpx.AsyncClient, model: int, seen: Seen) -> None:
    """Send one request, and check its answer."""
    seen.asked.append((time.monotonic(), model))
    number = random.randrange(1000)
    began = time.monotonic()
    answer = await client.post(f"/models/m{model}/predict", json={"input": [number, 1]})
    took_s = time.monotonic() - began
    code = answer.json().get("code")
    if code in ("overloaded", "deadline_exceeded"):
        seen.refused += code == "overloaded"
        seen.late += code != "overloaded"
        return
    assert answer.status_code == 200, answer.text
    assert answer.json()["prediction"]["outputs"]["y"] == [number * model, model]
    if took_s > 0.05:
        seen.cold_s.append(took_s)


async def send(
    client: httpx.AsyncClient, models: Iterator[int], rate: float, ends: float, seen: Seen
) -> None:
    """Send requests when they are due, however long others take."""
    async with asyncio.TaskGroup() as group:
        for model in models:
            if time.monotonic() >= ends:
                return
            group.create_task(ask(client, model, seen))
            await asyncio.sleep(random.expovariate(rate))


async def scene(server: Server, empty: int, seen: Seen) -> None:
    """Zipf's requests all the time, and a scan through all models from half the time on.

    Each model has been asked for once before: a first load also times all batch sizes.
    """
    limits = httpx.Limits(max_connections=1000, max_keepalive_connections=100)
    async with httpx.AsyncClient(
        base_url=server.url, timeout=60, verify=PLAIN, limits=limits
    ) as client:
        for model in range(MODELS):
            await ask(client, model, seen)
        seen.cold_s.clear()
        await measure(client, server, empty, seen)


async def measure(client: httpx.AsyncClient, server: Server, empty: int, seen: Seen) -> None:
    """Send the requests that count, and watch the memory."""
    ends = time.monotonic() + SECONDS

    async def watch() -> None:
        while time.monotonic() < ends:
            seen.largest_rss = max(seen.largest_rss, resident(server) - empty)
            await asyncio.sleep(0.1)

    async def scan() -> None:
        await asyncio.sleep(SECONDS / 2)
        await send(client, iter(range(MODELS)), SCAN_RATE, ends, seen)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        group.create_task(send(client, zipf(MODELS, 7), RATE, ends, seen))
        group.create_task(scan())


def resident(server: Server) -> int:
    """The physical memory of all processes of a server."""
    workers = (event["pid"] for event in server.events("worker_started"))
    return sum(map(resident_bytes, (server.process.pid, *workers)))


def loads_of(server: Server) -> dict[tuple[int, str], list[float]]:
    """When each worker loaded each model, in seconds."""
    loads: dict[tuple[int, str], list[float]] = {}
    for event in server.events("model_warmed"):
        at = dt.datetime.fromisoformat(event["timestamp"]).timestamp()
        loads.setdefault((event.get("worker", 0), event["model"]), []).append(at)
    return loads


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[int]]]:
    """300 models with 8 GB of weights, and the MiB of each."""
    folder = tmp_path_factory.mktemp("many")
    mib = [random.Random(model).randint(*MIB) for model in range(MODELS)]
    for model in range(MODELS):
        write_artifact(folder, f"m{model}", module=Scaled(float(model), mib[model]))
    yield folder, mib
    shutil.rmtree(folder)


@pytest.mark.soak
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_many_models_share_the_memory(
    repository: tuple[Path, list[int]], tmp_path: Path, workers: str
) -> None:
    folder, mib = repository
    seen = Seen()
    settings = {
        "load": "on-demand",
        "model_memory": f"{BUDGET_MIB}MiB",
        "min_resident_s": str(MIN_RESIDENT_S),
        "cache_bytes": "0",
        "workers": workers,
    }
    with running(folder, tmp_path / "log", **settings) as server:
        empty = resident(server)
        asyncio.run(scene(server, empty, seen))
        loads = loads_of(server)
    warmed = sum(map(len, loads.values()))
    counted = len(seen.asked) - MODELS
    hot = 1 - (warmed - MODELS + seen.refused + seen.late) / counted
    cold_s = np.array(seen.cold_s)
    budget = BUDGET_MIB / int(workers)
    simulation, lru = (simulated(seen.asked, mib, budget, lru=each) for each in (False, True))
    print(  # noqa: T201
        f"\n{counted} requests, {warmed - MODELS} loads, {seen.refused} refused, {seen.late} late, "
        f"hot {hot:.3f}; "
        f"simulated {simulation:.3f}, LRU {lru:.3f}; "
        f"grown by at most {seen.largest_rss / 2**20:.0f} MiB of {BUDGET_MIB}, from "
        f"{empty / 2**20:.0f}; cold p50, p99 {np.percentile(cold_s, 50):.2f}, "
        f"{np.percentile(cold_s, 99):.2f} s"
    )
    assert seen.largest_rss <= 1.1 * BUDGET_MIB * 2**20
    assert hot >= 0.97 * simulation
    assert hot > lru
    for times in loads.values():
        assert all(b - a >= MIN_RESIDENT_S for a, b in itertools.pairwise(times))
