"""Measures how loading a slow model slows one that serves: latencies before and meanwhile.

`make bench-loading` serves digits in an open loop, moves a slow model into the repository and waits
until it is ready. Server and generator share all cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import uvloop
from rich.console import Console

from loadtests.arguments import above_zero, from_zero
from loadtests.bench.bodies import Bodies, bodies_of
from loadtests.bench.dialects import DIALECTS
from loadtests.bench.own_models import linear_artifact, manifest_of, newest_artifact
from loadtests.bench.servers import Fleet, Server, ServerSpec
from loadtests.bench.workloads import OURS, Workload
from loadtests.errors import LoadTestError
from loadtests.openloop.arrivals import schedule
from loadtests.openloop.generator import Limits, Sent, send
from loadtests.traffic.target import exchange
from models.local_paths import local_path
from models.manifest import Manifest
from models.processor import cpu_name
from models.resources import usable_cores

ALLOWED_TIMES = 3.0  # factor for the p99 before; one forward of a single item is added
LEAD_S, BEFORE_S, AFTER_S = 2.0, 10.0, 2.0
LOOK_S = 0.1
MAX_BATCH = 64  # of the built model: a server's default limit
OK = 200
SINGLES = Workload("binary", "raw bytes", "binary", 1, ())


@dataclass(frozen=True, slots=True)
class Loading:
    """The times at which the model was put into the repository and was ready.

    Attributes:
        began_s, ready_s: seconds from the first request.
        item_ms: time of a single item's forward, from the artifact's plan.
    """

    began_s: float
    ready_s: float
    item_ms: float


class NotLoaded(LoadTestError):
    """The slow model was not ready in time; the message has its state."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the load and the slow model."""
    parser.add_argument("--rate", type=above_zero, default=200, help="requests/s (default: 200)")
    parser.add_argument("--seconds", type=above_zero, default=40, help="longest load (default: 40)")
    parser.add_argument("--seed", type=from_zero, default=1)
    parser.add_argument(
        "--artifacts", type=local_path, default=Path("artifacts"), help="has digits"
    )
    parser.add_argument(
        "--slow",
        type=local_path,
        metavar="MODEL/VERSION",
        help="the artifact to load (default: a model built for this)",
    )
    parser.add_argument(
        "--item-ms", type=above_zero, default=60, help="per item of that model (default: 60)"
    )


def loading(given: argparse.Namespace, console: Console, _: str) -> int:
    """Measure; return the exit code, 1 if the slowdown is larger than allowed."""
    console.print(f"{cpu_name()}, {usable_cores()} cores")
    with tempfile.TemporaryDirectory() as folder:
        slow = given.slow or linear_artifact(Path(folder), given.item_ms, MAX_BATCH)
        allowed = measure(newest_artifact(given.artifacts), slow, given, console)
    return 0 if allowed else 1


def measure(digits: Path, slow: Path, given: argparse.Namespace, console: Console) -> bool:
    """Load the slow model next to digits and print the result; return whether it is allowed.

    Raises:
        NotLoaded: if it is not ready within `given.seconds`.
        LoadTestError: if the server does not start or answer.
    """
    bodies = bodies_of(SINGLES, manifest_of(digits), DIALECTS[OURS], seed=1)
    with tempfile.TemporaryDirectory() as folder, Fleet() as fleet:
        models = Path(folder) / "models"
        shutil.copytree(digits, models / digits.parent.name / digits.name)
        shutil.copytree(slow, Path(folder) / slow.parent.name / slow.name)
        environment = (
            ("TORCHLANE_PORT", "{port}"),
            ("TORCHLANE_MODEL_DIR", str(models)),
            ("TORCHLANE_DEFAULT_MODEL", digits.parent.name),
            ("TORCHLANE_CACHE_BYTES", "0"),
            ("TORCHLANE_WORKERS", "1"),
            ("TORCHLANE_RELOAD_S", "0.5"),
        )
        spec = ServerSpec("server", (sys.executable, "-m", "app"), environment, "/health/ready")
        fleet.start(spec)
        with fleet.awake(spec) as server:
            name = slow.parent.name
            sent, loading = uvloop.run(
                _load(server, bodies, Path(folder) / name, models / name, given)
            )
    loading = Loading(loading.began_s, loading.ready_s, _item_ms(manifest_of(slow)))
    return _report(sent, loading, console)


async def _load(
    server: Server, bodies: Bodies, source: Path, target: Path, given: argparse.Namespace
) -> tuple[Sent, Loading]:
    seconds = LEAD_S + BEFORE_S + given.seconds
    due_s = schedule("poisson", given.rate, seconds, given.seed)
    requests = [bodies.request(number) for number in range(len(due_s))]
    sending = asyncio.create_task(send(server.address, due_s, requests, Limits()))
    await asyncio.sleep(0)  # it starts its clock
    start_s = time.perf_counter()
    await asyncio.sleep(start_s + LEAD_S + BEFORE_S - time.perf_counter())
    began_s = time.perf_counter() - start_s
    await asyncio.to_thread(source.rename, target)
    state = "not found"
    while time.perf_counter() - start_s < seconds - AFTER_S:
        path = f"/models/{target.name}"
        # this measures stalls, which may last as long as the load
        reply = await asyncio.to_thread(exchange, server.url, "GET", path, timeout_s=seconds)
        state = json.loads(reply.body).get("state") if reply.status == OK else state
        if state in ("ready", "failed"):
            break
        await asyncio.sleep(LOOK_S)
    ready_s = time.perf_counter() - start_s
    sent = await sending
    if state != "ready":
        advice = "" if state == "failed" else f"; try --seconds {2 * given.seconds:g}"
        raise NotLoaded(
            f"{target.name} is {state!r} {ready_s - began_s:.0f} s after it was put into the "
            f"repository{advice}"
        )
    return sent, Loading(began_s, ready_s, 0.0)


def _report(sent: Sent, loading: Loading, console: Console) -> bool:
    latency_ms = (sent.done_s - sent.due_s) * 1000
    bad = sum(each is None or each.status != OK for each in sent.responses)
    spans = {
        "before": (LEAD_S, loading.began_s),
        "while it loads": (loading.began_s, loading.ready_s),
        "after": (loading.ready_s, sent.due_s[-1]),
    }
    p99_ms = {}
    for name, (begin_s, end_s) in spans.items():
        of_span = latency_ms[(sent.due_s >= begin_s) & (sent.due_s < end_s)]
        p50, p99_ms[name] = np.percentile(of_span, (50, 99)) if len(of_span) else (0.0, 0.0)
        console.print(
            f"{name:15} {len(of_span):6,} requests, p50 {p50:6.1f} ms, p99 {p99_ms[name]:7.1f} ms"
        )
    allowed_ms = ALLOWED_TIMES * p99_ms["before"] + loading.item_ms
    ratio = p99_ms["while it loads"] / p99_ms["before"]
    console.print(f"ready in {loading.ready_s - loading.began_s:.1f} s; {bad} requests failed")
    console.print(
        f"p99 while it loads over before: {ratio:.1f}; allowed: {ALLOWED_TIMES:g} plus one forward "
        f"of {loading.item_ms:.0f} ms = {allowed_ms / p99_ms['before']:.1f}"
    )
    return p99_ms["while it loads"] <= allowed_ms and bad == 0


def _item_ms(manifest: Manifest) -> float:
    """Return the fastest single-item forward that export has timed; 0 without a plan."""
    devices = manifest.plan.devices if manifest.plan else ()
    singles = [t.median_us[0] for d in devices for t in d.times if t.batch_sizes[0] == 1]
    return min(singles, default=0.0) / 1000
