"""A server under a short mixed load, an idle balancer, and the Prometheus that has watched both."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.artifacts import write_artifact
from tests.e2e.balanced import balancing
from tests.e2e.names import naming
from tests.e2e.prometheus import Prometheus, running_prometheus
from tests.e2e.server import Server, running

LOAD_S = 8.0
WINDOW_S = 3.0  # rates need some scrapes before the first value
SETTLE_S = 1.0  # for the last scrape, and the rules that are made of it
TOO_LARGE = [200, 0]  # the model fails on it
# The release of `other` waits, and `lazy` is loaded again and again.
MODELS_FILE = """
[models.other]
release = { to = 2 }
[models.canary]
release = { to = 2, steps = [50, 100], every_s = 3600, stop_if.agreement_below = 0.5 }
shadow = { version = 2, share = 1 }
[models.lazy]
load = "on-demand"
idle_s = 0.5
cache = false
"""
LAZY_S = 3.0  # between two requests for `lazy`, which is unloaded meanwhile


@dataclass(frozen=True)
class Stack:
    """A server, the Prometheus that scrapes it, and when (time.time()) it was under load."""

    server: Server
    prometheus: Prometheus
    start_s: float
    end_s: float

    def series_of(self, expression: str) -> int:
        """How many series an expression had at the end of the load."""
        return len(self.prometheus.query(expression, self.end_s))


async def mixed_load(url: str, seconds: float) -> None:
    """New and repeated items, batches, two models, and errors of every kind that is cheap."""
    numbers = (n * 1e-4 for n in itertools.count(1))
    until = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:

        async def caller() -> None:
            while time.monotonic() < until:
                new = [[next(numbers), 0] for _ in range(4)]
                hurry = {"x-torchlane-timeout-ms": "0.001"}
                answers = [
                    await client.post("/models/other/predict", json={"input": [0, 0]}),
                    await client.post("/predict", json={"input": [next(numbers), 0]}),
                    await client.post("/batch-predict", json={"inputs": [*new, new[0], TOO_LARGE]}),
                    await client.post("/predict", json={"input": TOO_LARGE}),
                    await client.post("/predict", json={"input": "no number"}),
                    await client.post("/models/none/predict", json={"input": 1}),
                    await client.post("/models/canary/predict", json={"input": [next(numbers), 0]}),
                    await client.post("/predict", json={"input": [0, 0]}, headers=hurry),
                ]
                statuses = [answer.status_code for answer in answers]
                assert statuses == [200, 200, 200, 500, 422, 404, 200, 504]
                await asyncio.sleep(0.02)

        async def now_and_then() -> None:
            while time.monotonic() < until:
                answer = await client.post("/models/lazy/predict", json={"input": [0, 0]})
                assert answer.status_code == 200
                await asyncio.sleep(LAZY_S)

        await asyncio.gather(now_and_then(), *(caller() for _ in range(3)))


@contextlib.contextmanager
def loaded_stack(folder: Path) -> Iterator[Stack]:
    """Start both, load the server, and hand them over when Prometheus has seen all of it."""
    for model in ("double", "other", "lazy", "canary"):
        write_artifact(folder / "artifacts", model)
    write_artifact(folder / "artifacts", "canary", 2)
    (folder / "models.toml").write_text(MODELS_FILE)
    settings = {
        **{"default_model": "double", "models_file": str(folder / "models.toml")},
        **{"versions": "all", "min_resident_s": "0"},
    }
    with (
        running(folder / "artifacts", folder / "log.server", **settings) as server,
        naming([server.host]) as names,
        balancing(
            folder, nameserver=f"127.0.0.1:{names.port}", server_port=str(server.port)
        ) as balancer,
        running_prometheus(folder, server.port, balancer.admin_port) as prometheus,
    ):
        balancer.wait_ready(1)
        prometheus.wait_until(lambda: bool(prometheus.query("torchlane_ready")), "a first scrape")
        start_s = time.time()
        asyncio.run(mixed_load(server.url, LOAD_S))
        time.sleep(SETTLE_S)
        yield Stack(server, prometheus, start_s + WINDOW_S, time.time() - SETTLE_S)
