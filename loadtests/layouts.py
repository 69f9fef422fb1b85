"""Settings of CPU replicas and threads beside each other, and what our server chooses by itself.

`python -m loadtests.layouts`: one server for each setting, on all cores, with the generator
among them; they take turns. Digits as JSON, and a model whose cost is linear in the batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtests.bench import wrk
from loadtests.bench.bodies import bodies_of
from loadtests.bench.dialects import DIALECTS
from loadtests.bench.own_models import ModelError, linear_artifact, manifest_of, newest_artifact
from loadtests.bench.servers import Fleet, ServerError, ServerSpec, fetch
from loadtests.bench.workloads import OURS, Workload
from loadtests.bench.wrk import LoadError, LoadPlan
from models.processor import cpu_name
from models.resources import usable_cores

FAILURES = (LoadError, ModelError, ServerError)
AUTO = "auto"
CONNECTIONS = 64
WARM_UP_S = 1
DIGITS_BATCH, LINEAR_BATCH = 64, 16  # of the linear model a tenth of a second
HANG_S = "600"  # a server that slept for four times as long would end when it wakes
JSON_SINGLES = Workload("json", "single JSON", "json", CONNECTIONS, ())


@dataclass(frozen=True, slots=True)
class Setting:
    """Replicas and intra-op threads of each; None: what the server chooses."""

    replicas: int | None = None
    threads: int | None = None

    def __str__(self) -> str:
        return AUTO if self.replicas is None else f"{self.replicas} x {self.threads}"

    @property
    def environment(self) -> tuple[tuple[str, str], ...]:
        """The server's settings."""
        if self.replicas is None:
            return (("TORCHLANE_DEVICES", "auto"),)
        return (
            ("TORCHLANE_DEVICES", f"cpu*{self.replicas}"),
            ("TORCHLANE_CPU_THREADS", str(self.threads)),
        )


def settings(cores: int) -> Iterator[Setting]:
    """Every number of replicas and of threads that the cores can run at once."""
    for replicas in range(1, cores + 1):
        for threads in range(1, cores // replicas + 1):
            yield Setting(replicas, threads)


def compare(artifact: Path, most: int, given: argparse.Namespace, console: Console) -> None:
    """Measure one model under all settings, with batches of up to `most` items, and print it."""
    manifest = manifest_of(artifact)
    bodies = bodies_of(JSON_SINGLES, manifest, DIALECTS[OURS], seed=1)
    specs = {each: _spec(each, artifact, most) for each in (*settings(usable_cores()), Setting())}
    rates: dict[Setting, list[float]] = {each: [] for each in specs}
    plan = LoadPlan(CONNECTIONS, given.seconds)
    sent = 0
    with Fleet() as fleet, tempfile.TemporaryDirectory() as folder:
        requests = Path(folder) / "requests"
        bodies.write(requests)
        for spec in specs.values():
            fleet.start(spec)
        with fleet.awake(specs[Setting()]) as server:
            chosen = _chosen(server.port)
        for _ in range(given.rounds):
            for setting, spec in specs.items():
                with fleet.awake(spec) as server:
                    for load in (LoadPlan(CONNECTIONS, WARM_UP_S), plan):
                        run = wrk.load(server.port, requests, sent, load)
                        sent += run.sent + CONNECTIONS
                rates[setting].append(run.requests_per_s)
    table = Table("setting", "requests/s", "rounds", title=f"{manifest.model}: {chosen} chosen")
    medians = {each: statistics.median(found) for each, found in rates.items()}
    for each, found in rates.items():
        rounds = " ".join(f"{rate:,.0f}" for rate in found)
        table.add_row(str(each), f"{medians[each]:,.0f}", rounds)
    best = max((each for each in medians if each != Setting()), key=lambda each: medians[each])
    console.print(table)
    ratio = medians[Setting()] / medians[best]
    console.print(f"auto over the best by hand ({best}): {ratio:.2f}")


def _spec(setting: Setting, artifact: Path, most: int) -> ServerSpec:
    environment = (
        ("TORCHLANE_PORT", "{port}"),
        ("TORCHLANE_MODEL_DIR", str(artifact.parent.parent)),
        ("TORCHLANE_DEFAULT_MODEL", artifact.parent.name),
        ("TORCHLANE_CACHE_BYTES", "0"),
        ("TORCHLANE_MAX_BATCH_SIZE", str(most)),
        ("TORCHLANE_HANG_S", HANG_S),
        *setting.environment,
    )
    command = (sys.executable, "-m", "app")
    return ServerSpec(str(setting), command, environment, "/health/ready")


def _chosen(port: int) -> str:
    """How many replicas a server has; of one, nobody says with how many threads."""
    _, body = fetch(port, "GET", "/models?full=true")
    replicas = json.loads(body)["models"][0]["replicas"]
    return f"{len(replicas)} replica{'s' if len(replicas) > 1 else ''}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the settings; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.layouts", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="of each setting in each round")
    parser.add_argument("--item-ms", type=float, default=6, help="of the linear model (default: 6)")
    parser.add_argument("--artifacts", type=Path, default=Path("artifacts"))
    given = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{cpu_name()}, {usable_cores()} cores")
    try:
        compare(newest_artifact(given.artifacts), DIGITS_BATCH, given, console)
        with tempfile.TemporaryDirectory() as folder:
            linear = linear_artifact(Path(folder), given.item_ms)
            compare(linear, LINEAR_BATCH, given, console)
    except FAILURES as error:
        sys.stderr.write(f"layouts: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
