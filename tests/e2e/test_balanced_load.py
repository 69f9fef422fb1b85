"""What servers behind HAProxy compute, hold and lose under load: the figures of docs/scaling.md.

They are printed: `make nightly PYTEST_ARGS='-s -k balanced_load'`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import signal
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from loadtests.bench.wrk import LoadPlan, WrkResult, load
from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.e2e.balanced import cluster, in_turns
from tests.e2e.server import Process
from tests.e2e.test_balanced import SEED, SLACK, interrupted
from tests.e2e.traffic import INPUTS, ask_each, callers, zipf

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
REQUESTS = 60_000
ROUNDS = 7
WIDTH = 1024  # numbers of an input: 8 KB of JSON, as a picture of digits
RETRIES = {"as shipped": "conn-failure 503", "also lost": "conn-failure 503 empty-response"}


@pytest.mark.parametrize(
    ("change", "least", "most"),
    [pytest.param(None, 1.0, 1.05, id="hashed"), pytest.param(in_turns, 2.5, 3.0, id="in turns")],
)
def test_total_of_computed_items(
    change: Callable[[str], str] | None, least: float, most: float, models: Path, tmp_path: Path
) -> None:
    numbers = itertools.islice(zipf(random.Random(SEED)), REQUESTS)
    with cluster(models, tmp_path, change=change) as found:
        tally = asyncio.run(callers(found.balancer.port, numbers, 500))
        computed = found.computed()
        served = [int(each.metric("torchlane_requests_total")) for each in found.servers]
    ratio = sum(computed) / len(tally.seen)
    print(  # noqa: T201
        f"\n{REQUESTS} requests by Zipf over {INPUTS} inputs, {len(tally.seen)} of them seen: "
        f"{sum(computed)} items computed by three servers ({computed}), {ratio:.3f} of the "
        f"distinct ones; requests by server: {served}"
    )
    assert (tally.answered, tally.wrong, tally.again) == (REQUESTS, [], 0)
    assert least <= ratio <= most


@pytest.mark.parametrize("retries", RETRIES)
def test_a_kill_and_a_drain_under_load(retries: str, models: Path, tmp_path: Path) -> None:
    with cluster(models, tmp_path, balancer={"retry_on": RETRIES[retries]}) as found:
        ask_each(found.balancer.url, INPUTS)
        shares = found.computed()
        killed = asyncio.run(interrupted(found, 0, signal.SIGKILL, 8))
        found.balancer.wait_ready(2)
        ask_each(found.balancer.url, INPUTS)
        moved = sum(found.computed()) - sum(shares[1:])
        drained = asyncio.run(interrupted(found, 1, signal.SIGTERM, 8))
        code = found.servers[1].exit_code()
    print(  # noqa: T201
        f"\nretries {retries}: killed: {killed.answered} answered, {killed.again} asked for again "
        f"by their callers; drained: {drained.answered} answered, {drained.again} again, "
        f"exit {code}; of {INPUTS} keys {moved} moved"
    )
    assert killed.wrong == drained.wrong == []
    assert (drained.again, code) == (0, 0)
    assert killed.again == 0 or retries == "as shipped"
    assert 0 < moved <= INPUTS * (1 / 3 + SLACK)


def wide_requests(file: Path) -> Path:
    """100 requests of 8 KB in the order of Zipf's law, as wrk's script reads them."""
    rng = np.random.default_rng(SEED)
    bodies = []
    for row in rng.random((100, WIDTH)):
        body = b'{"input": [%s]}' % b", ".join(b"%.5f" % each for each in row)
        head = "POST /predict HTTP/1.1\r\nHost: loopback\r\nContent-Type: application/json\r\n"
        bodies.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    order = list(itertools.islice(zipf(random.Random(SEED), len(bodies)), 20_000))
    lengths = "\n".join(str(len(each)) for each in bodies)
    start = f"{len(bodies)} none {len(order)}\n{' '.join(map(str, order))}\n{lengths}\n"
    file.write_bytes(start.encode() + b"".join(bodies))
    return file


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    x, y = (TensorSpec(name=name, dtype="float32", shape=(-1, WIDTH)) for name in "xy")
    golden = [{"x": np.ones(WIDTH, np.float32)}]
    write_artifact(tmp_path / "models", "double", inputs=(x,), outputs=(y,), golden=golden)
    return tmp_path / "models"


def cpu_s(process: Process) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def test_throughput_through_haproxy_compared_with_direct(wide: Path, tmp_path: Path) -> None:
    """One server, everything on the same cores; all inputs are cached, so HTTP is all there is."""
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    requests = wide_requests(tmp_path / "requests")
    plan = LoadPlan(connections=32, seconds=3)
    with cluster(wide, tmp_path, 1) as found:
        (server,) = found.servers
        rounds: dict[str, list[tuple[WrkResult, float, float]]] = {"direct": [], "HAProxy": []}
        load(server.port, requests, 0, plan)
        for _ in range(ROUNDS):
            for way, port in (("direct", server.port), ("HAProxy", found.balancer.port)):
                before = cpu_s(server.process), cpu_s(found.balancer.process)
                run = load(port, requests, 0, plan)
                spent = cpu_s(server.process), cpu_s(found.balancer.process)
                us = [1e6 * (b - a) / run.answered for a, b in zip(before, spent, strict=True)]
                assert run.not_200 == 0
                rounds[way].append((run, us[0], us[1]))
    told = {
        way: [
            statistics.median(each)
            for each in zip(
                *((run.requests_per_s, run.p50_ms, run.p99_ms, a, b) for run, a, b in runs),
                strict=True,
            )
        ]
        for way, runs in rounds.items()
    }
    for way, (rate, p50, p99, ours, theirs) in told.items():
        print(  # noqa: T201
            f"\n{way}: {rate:,.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms; "
            f"CPU per request: server {ours:.0f} us, HAProxy {theirs:.0f} us"
        )
    ratios = [
        through[0].requests_per_s / direct[0].requests_per_s
        for direct, through in zip(rounds["direct"], rounds["HAProxy"], strict=True)
    ]
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"through HAProxy over direct: {middle:.2f} ({low:.2f}..{high:.2f})")  # noqa: T201
    assert middle > 0.2  # they share two cores: what counts is printed
