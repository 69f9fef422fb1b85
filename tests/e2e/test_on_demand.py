"""A real server with more models than fit: answers, memory and how often a model was there."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import math
import random
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

MODELS, BUDGET_MIB = 150, 640
SECONDS, CALLERS = 120.0, 3
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
    """What the callers saw."""

    asked: list[int] = field(default_factory=list)
    cold_s: list[float] = field(default_factory=list)
    refused: int = 0
    largest_rss: int = 0


def zipf(models: int, seed: int) -> Iterator[int]:
    """Model numbers by Zipf(1.0)."""
    rng = random.Random(seed)
    order = rng.sample(range(models), models)
    weights = list(itertools.accumulate(1 / (1 + rank) for rank in range(models)))
    while True:
        yield order[bisect.bisect(weights, rng.random() * weights[-1])]


def simulated(asked: Sequence[int], mib: Sequence[int], budget: float, *, lru: bool) -> float:
    """The share of requests whose model would be there, by the server's rule or LRU."""
    uses, last = [0.0] * len(mib), [0] * len(mib)
    there: set[int] = set()
    hits = 0
    for now, model in enumerate(asked):
        uses[model] = 1 + uses[model] * 0.5 ** ((now - last[model]) / HALF_LIFE)
        last[model] = now
        hits += model in there
        there.add(model)
        while sum(mib[each] for each in there) > budget:

            def worth(each: int) -> float:
                faded = uses[each] * 0.5 ** ((now - last[each]) / HALF_LIFE)  # noqa: B023
                return last[each] if lru else faded

            there.remove(min(there - {model}, key=worth))
    return hits / len(asked)


async def call(server: Server, pick: Iterator[int], ends: float, seen: Seen) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60, verify=PLAIN) as client:
        while time.monotonic() < ends:
            model = next(pick)
            number = random.randrange(1000)
            began = time.monotonic()
            seen.asked.append(model)
            answer = await client.post(f"/models/m{model}/predict", json={"input": [number, 1]})
            took_s = time.monotonic() - began
            if answer.status_code == 503 and answer.json()["code"] == "overloaded":
                seen.refused += 1
                continue
            assert answer.json()["prediction"]["outputs"]["y"] == [number * model, model]
            if took_s > 0.05:
                seen.cold_s.append(took_s)


@pytest.mark.soak
@pytest.mark.parametrize("workers", ["1", "2"])
def test_many_models_share_the_memory(tmp_path: Path, workers: str) -> None:
    mib = [random.Random(model).randint(4, 24) for model in range(MODELS)]
    for model in range(MODELS):
        write_artifact(tmp_path / "models", f"m{model}", module=Scaled(float(model), mib[model]))
    seen = Seen()
    scan = iter(range(MODELS))

    async def watch(server: Server, empty: int, ends: float) -> None:
        while time.monotonic() < ends:
            seen.largest_rss = max(seen.largest_rss, resident_bytes(server.process.pid) - empty)
            await asyncio.sleep(0.1)

    async def scene(server: Server, empty: int) -> None:
        pick, ends = zipf(MODELS, 7), time.monotonic() + SECONDS
        half = time.monotonic() + SECONDS / 2

        def picks() -> Iterator[int]:
            while True:
                yield next(pick) if time.monotonic() < half else next(scan, None) or next(pick)

        await asyncio.gather(
            watch(server, empty, ends), *(call(server, picks(), ends, seen) for _ in range(CALLERS))
        )

    settings = {
        "load": "on-demand",
        "model_memory": f"{BUDGET_MIB}MiB",
        "min_resident_s": "0.5",
        "cache_bytes": "0",
        "workers": workers,
    }
    with running(tmp_path / "models", tmp_path / "log", **settings) as server:
        empty = resident_bytes(server.process.pid)
        asyncio.run(scene(server, empty))
        warmed = sum(
            float(line.rpartition(" ")[2])
            for line in server.scrape()
            if line.startswith("torchlane_model_loads_total") and 'result="warmed"' in line
        )
    hot = 1 - (warmed + seen.refused) / len(seen.asked)
    each = np.array(seen.cold_s)
    budget = BUDGET_MIB / int(workers)
    print(  # noqa: T201
        f"\n{len(seen.asked)} requests, {warmed:.0f} loads, {seen.refused} refused, hot {hot:.3f}; "
        f"simulated {simulated(seen.asked, mib, budget, lru=False):.3f}, "
        f"LRU {simulated(seen.asked, mib, budget, lru=True):.3f}; "
        f"grown by at most {seen.largest_rss / 2**20:.0f} MiB of {BUDGET_MIB}; cold p50, p99 "
        f"{np.percentile(each, 50):.2f}, {np.percentile(each, 99):.2f} s"
    )
    if workers == "1":
        assert seen.largest_rss <= 1.1 * BUDGET_MIB * 2**20
    assert warmed > MODELS / 2
