"""Three real servers behind a real HAProxy with the shipped configuration act as one.

The figures of the long tests are printed: `make nightly PYTEST_ARGS='-s -k balanced'`.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import httpx

from tests.e2e.balanced import Cluster, cluster
from tests.e2e.server import PLAIN
from tests.e2e.traffic import INPUTS, Tally, ask_each, callers, zipf

CALLERS = 24
KEYS = 200
SLACK = 0.1  # of the keys: places on the ring are drawn, not dealt
SEED = 20_261_124


async def interrupted(
    found: Cluster, number: int, by: signal.Signals, seconds: float, inputs: int = INPUTS
) -> Tally:
    """Load, in the middle of which one server gets a signal."""
    left = zipf(random.Random(SEED), inputs)
    load = asyncio.create_task(callers(found.balancer.port, left, seconds))
    await asyncio.sleep(seconds / 2)
    found.servers[number].signal(by)
    return await load


def test_balanced_servers_survive_a_kill_and_a_drain(models: Path, tmp_path: Path) -> None:
    with cluster(models, tmp_path) as found:
        for _ in range(2):
            ask_each(found.balancer.url, KEYS)
        assert sum(found.computed()) == KEYS  # no item was computed twice
        large = b'{"input": [3, 2]}' + b" " * 300_000  # larger than what the balancer holds
        for _ in range(6):
            answer = httpx.post(f"{found.balancer.url}/predict", content=large, verify=PLAIN)
            assert answer.json()["prediction"] == {"outputs": {"y": [6, 4]}}
        shares = found.computed()
        assert sum(shares) == KEYS + 1

        killed = asyncio.run(interrupted(found, 0, signal.SIGKILL, 1.0, KEYS))
        assert killed.wrong == []
        assert killed.again <= 2 * CALLERS  # what was in flight there
        found.balancer.wait_ready(2)
        ask_each(found.balancer.url, KEYS)
        moved = sum(found.computed()) - sum(shares[1:])
        assert shares[0] - 1 <= moved <= KEYS * (1 / 3 + SLACK)

        drained = asyncio.run(interrupted(found, 1, signal.SIGTERM, 1.0, KEYS))
        assert (drained.wrong, drained.again) == ([], 0)
        assert found.servers[1].exit_code() == 0
        assert drained.answered > 100
