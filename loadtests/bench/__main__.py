"""`python -m loadtests.bench`: single JSON predictions per second, on one core.

Torchlane beside a plain synchronous FastAPI handler (`plain_fastapi`) and a bare ASGI application
(`bare_asgi`), in interleaved rounds. The servers share one core, the load comes from another one;
each round starts them anew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from pydantic import ValidationError
from rich.console import Console

from loadtests.bench import checks, report
from loadtests.bench.generator import LoadError, LoadPlan, Run, load
from loadtests.bench.requests import Requests
from loadtests.bench.servers import (
    Cores,
    Server,
    ServerError,
    ServerSpec,
    choose_cores,
    pinned,
    running,
)
from models.manifest import MANIFEST_FILE, Manifest

MODEL = "digits"
TORCHLANE, PLAIN, BARE = "torchlane", "plain FastAPI", "bare ASGI"
PREFIX = "TORCHLANE_"
BUSY_LOAD = 0.5  # a load average above it: somebody else is using the machine


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    rounds: int
    plan: LoadPlan
    artifacts: Path
    out: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    console = Console(highlight=False, soft_wrap=True)
    options = parse(arguments)
    try:
        folder, manifest = newest_artifact(options.artifacts)
        conditions = _conditions(options)
        requests = Requests(manifest, seed=0)
        cores = choose_cores()
        console.print(_headline(options, folder, requests, cores, conditions))
        forwards = measure_forwards(console, folder, cores)
        rounds: list[report.Round] = []
        for number in range(options.rounds):
            rounds.append(measure(options, folder, manifest, cores))
            speeds = [f"{name} {m.requests_per_s:,.0f}" for name, m in rounds[-1].items()]
            console.print(f"round {number + 1}: {', '.join(speeds)} requests/s")
    except (checks.CheckError, LoadError, ServerError, ValueError) as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    report.print_table(console, rounds, PLAIN)
    conditions["body_bytes"] = requests.body_bytes
    found = report.as_json(rounds, PLAIN, conditions) | {"forward": forwards}
    file = report.write_json(found, options.out)
    ratio = report.ratio(rounds, TORCHLANE, PLAIN)
    console.print(
        f"{TORCHLANE} answers {ratio.median:.2f} times the requests of {PLAIN} "
        f"(rounds: {ratio.low:.2f} to {ratio.high:.2f}); written to {file}"
    )
    return 0


def parse(arguments: Sequence[str] | None) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench", description=__doc__)
    parser.add_argument("--rounds", type=_at_least_one, default=3)
    parser.add_argument("--seconds", type=_positive, default=5.0, help="measured, each run")
    parser.add_argument("--connections", type=_at_least_one, default=32)
    parser.add_argument("--quick", action="store_true", help="one round of two seconds each")
    parser.add_argument("--artifacts", type=Path, default=Path("artifacts"))
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder for bench.json")
    given = parser.parse_args(arguments)
    rounds, seconds = (1, 2.0) if given.quick else (given.rounds, given.seconds)
    plan = LoadPlan(given.connections, warm_up_s=min(1.0, seconds / 2), seconds=seconds)
    return Options(rounds, plan, given.artifacts, given.out)


def newest_artifact(artifacts: Path) -> tuple[Path, Manifest]:
    """The folder and manifest of the newest version of digits.

    Raises:
        ValueError: if there is none, or none that can be read.
    """
    versions = [
        int(file.parent.name)
        for file in (artifacts / MODEL).glob(f"*/{MANIFEST_FILE}")
        if file.parent.name.isdecimal()
    ]
    if not versions:
        raise ValueError(f"there is no model {MODEL!r} in {artifacts}; run `make export` first")
    folder = artifacts / MODEL / str(max(versions))
    try:
        return folder, Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except ValidationError as error:
        raise ValueError(f"{folder / MANIFEST_FILE} is damaged; run `make export` anew") from error


def measure_forwards(console: Console, folder: Path, cores: Cores) -> report.Json | None:
    """Forwards without a server, by the plan and by the plain script, on the server's core.

    Where the plan is not of one thread of this machine, the reason is printed instead, and what to
    do: servers choose for themselves then, and are measured all the same.
    """
    with pinned(cores.server):
        command = [sys.executable, "-m", "loadtests.bench.forward", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it ended without a word"]
        console.print(f"forwards were not measured: {lines[-1].removeprefix('forward: ')}")
        return None
    found: report.Json = json.loads(done.stdout)
    report.print_forwards(console, found)
    return found


def measure(options: Options, folder: Path, manifest: Manifest, cores: Cores) -> report.Round:
    """One round: start all servers, compare their answers, load one after the other.

    Raises:
        CheckError, LoadError, ServerError: if a number would not mean what it says.
    """
    requests = Requests(manifest, seed=0)
    with (
        pinned(cores.generator),
        running(_specs(options.artifacts, folder), cores.server) as servers,
    ):
        torchlane, plain, _ = servers
        checks.check_same_answers(torchlane, plain, requests)
        before = checks.items_computed(torchlane, manifest.model)
        runs = {server.name: _load(server, requests, options.plan) for server in servers}
        after = checks.items_computed(torchlane, manifest.model)
        checks.check_all_computed(before, after, runs[torchlane.name].answered)
    return {name: report.Measured.of(run) for name, run in runs.items()}


def _load(server: Server, requests: Requests, plan: LoadPlan) -> Run:
    run = uvloop.run(load(server.port, requests.request, plan))
    checks.check_all_answered(server.name, run)
    return run


def _specs(artifacts: Path, folder: Path) -> list[ServerSpec]:
    own = {
        "TORCHLANE_HOST": "127.0.0.1",
        "TORCHLANE_PORT": "{port}",
        "TORCHLANE_MODEL_DIR": str(artifacts),
        "TORCHLANE_DEFAULT_MODEL": MODEL,
        "TORCHLANE_DEVICES": "cpu",  # one core is compared with one core, also beside a GPU
    }
    plain = ("-m", "loadtests.bench.plain_fastapi", "--port", "{port}", "--artifact", str(folder))
    return [
        ServerSpec(TORCHLANE, ("-m", "app"), own, "/health/ready"),
        ServerSpec(PLAIN, plain),
        ServerSpec(BARE, ("-m", "loadtests.bench.bare_asgi", "--port", "{port}")),
    ]


def _conditions(options: Options) -> dict[str, Any]:
    return {
        "what": "single JSON predictions, digits model, every input its own",
        "command": f"python -m loadtests.bench {' '.join(sys.argv[1:])}".strip(),
        "seconds": options.plan.seconds,
        "connections": options.plan.connections,
        # their names only: a value may be a secret
        "settings_from_environment": sorted(n for n in os.environ if n.startswith(PREFIX)),
        "machine": report.machine(),
    }


def _headline(
    options: Options, folder: Path, requests: Requests, cores: Cores, conditions: dict[str, Any]
) -> str:
    here = conditions["machine"]
    lines = [
        f"{folder}: JSON bodies of {requests.body_bytes} bytes, each with an input of its own",
        f"{options.plan.connections} connections, {options.plan.seconds:g} s a run",
        f"{here['processor']}, {here['cores']} cores, torch {here['torch']}, {here['date']}",
    ]
    if cores.server is None:
        lines.append("only one core can be used: server and load share it, nothing is pinned")
    else:
        lines.append(f"servers on core {cores.server}, load from core {cores.generator}")
    if conditions["settings_from_environment"]:
        lines.append(f"set for Torchlane: {', '.join(conditions['settings_from_environment'])}")
    if here["load_average_before"] > BUSY_LOAD:
        lines.append(f"the machine was not idle: load average {here['load_average_before']:g}")
    return "\n".join(lines)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 3600:
        raise argparse.ArgumentTypeError("must be above 0, and below an hour")
    return number


if __name__ == "__main__":
    sys.exit(main())
