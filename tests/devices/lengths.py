"""`python -m tests.devices.lengths`: sentences of mixed lengths, in batches formed in three ways.

A server that pads within groups of like lengths and widens them by their cost, as exported; the
same without the mask, so that only equal lengths share a batch; and the same, padding whatever
waits in the order of arrival. Each has one core and no cache; wrk loads them in turns.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import app.engine.dispatcher
from app.__main__ import main as serve
from app.engine.batch_cost import BatchCost
from app.engine.queue import ShapeView
from loadtests.bench import wrk
from loadtests.bench.artifacts import manifest_of, newest_artifact
from loadtests.bench.bodies import bodies_of
from loadtests.bench.dialects import TORCHLANE
from loadtests.bench.servers import Fleet, ServerSpec, choose_cores, pinned
from loadtests.bench.workloads import MINILM, select
from models.processor import cpu_name
from tests.artifacts import change_manifest

IN_ORDER = "serve-in-order"
BUCKETS, EXACT, ARRIVAL = "buckets", "exact lengths", "in order of arrival"
WAYS = (BUCKETS, EXACT, ARRIVAL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.devices.lengths", description=__doc__)
    parser.add_argument("--artifacts", type=Path, default=Path("artifacts"), help="with minilm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="of each way in a round")
    parser.add_argument("--connections", type=int, default=32)
    given = parser.parse_args(arguments)
    write = sys.stdout.write
    write(f"{cpu_name()}, {given.connections} connections\n")
    rounds: list[dict[str, Figures]] = []
    artifact = newest_artifact(given.artifacts, MINILM)
    with tempfile.TemporaryDirectory() as folder, Fleet() as fleet:
        specs = {way: _spec(way, artifact, Path(folder) / way) for way in WAYS}
        for spec in specs.values():
            fleet.start(spec)
        for number in range(given.rounds):
            seeds = itertools.count(number * len(WAYS) + 1)
            made = {way: _measured(fleet, specs[way], artifact, next(seeds), given) for way in WAYS}
            told = (f"{w} {each.per_s:,.0f}/s, {each.cpu_ms:.2f} ms" for w, each in made.items())
            write(f"round {number + 1}: {'; '.join(told)} of processor time each\n")
            rounds.append(made)
    for way in WAYS[1:]:
        speed = _spread(each[BUCKETS].per_s / each[way].per_s for each in rounds)
        cpu = _spread(each[way].cpu_ms / each[BUCKETS].cpu_ms for each in rounds)
        write(f"{BUCKETS} over {way}: {speed}; by processor time {cpu}\n")
    return 0


class Figures(NamedTuple):
    """Sentences per second, and processor time of the server for each, in milliseconds."""

    per_s: float
    cpu_ms: float


def _spread(ratios: Iterable[float]) -> str:
    found = sorted(ratios)
    return f"{statistics.median(found):.2f} ({found[0]:.2f}..{found[-1]:.2f})"


def _spec(way: str, artifact: Path, repository: Path) -> ServerSpec:
    folder = repository / MINILM / artifact.name
    shutil.copytree(artifact, folder)
    if way == EXACT:
        change_manifest(folder, _without_mask)
    module = ("tests.devices.lengths", IN_ORDER) if way == ARRIVAL else ("app",)
    options = ("--port", "{port}", "--model-dir", str(repository), "--devices", "cpu")
    command = (sys.executable, "-m", *module, *options, "--cache-bytes", "0")
    return ServerSpec(way, command, (), "/health/ready", choose_cores().server)


def _without_mask(manifest: Any) -> None:
    for spec in (*manifest["inputs"], *manifest["outputs"]):
        for dimension in spec["dimensions"]:
            dimension["mask"] = None


def _measured(
    fleet: Fleet, spec: ServerSpec, artifact: Path, seed: int, given: argparse.Namespace
) -> Figures:
    """Load one server; no sentence comes twice."""
    [workload] = select(["text-32"])
    bodies = bodies_of(workload, manifest_of(artifact), TORCHLANE, seed)
    with tempfile.NamedTemporaryFile() as file, fleet.awake(spec) as server:
        bodies.write(Path(file.name))
        with pinned(choose_cores().generator):
            warm = wrk.load(server.port, Path(file.name), 0, wrk.LoadPlan(given.connections, 1))
            plan = wrk.LoadPlan(given.connections, given.seconds)
            before_s = server.cpu_s()
            run = wrk.load(server.port, Path(file.name), warm.sent, plan)
            cpu_ms = (server.cpu_s() - before_s) * 1e3 / run.answered
    if run.not_200:
        raise SystemExit(f"{run.not_200} of {run.answered} answers were not 200")
    return Figures(run.requests_per_s, cpu_ms)


def _all_that_wait(
    first: ShapeView, shapes: Sequence[ShapeView], cost: BatchCost, share: float = 1.0
) -> ShapeView:
    """All lengths in one batch; `take` puts the tickets in the order in which they are due."""
    alike = [each for each in shapes if each.groups[0][0] == first.groups[0][0]]
    return first._replace(
        groups=tuple(each.groups[0] for each in alike),
        length=max(each.length for each in alike),
        waiting=sum(each.waiting for each in alike),
    )


if __name__ == "__main__":
    if sys.argv[1:2] == [IN_ORDER]:
        app.engine.dispatcher.widened = _all_that_wait  # type: ignore[attr-defined]
        sys.exit(serve(arguments=sys.argv[2:]))
    sys.exit(main())
