"""The place and conditions of a measurement, for machines and people."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from loadtests.bench.environments import (
    COMPILED,
    WITH_ENVIRONMENT,
    check_machine_code,
    check_sources,
    pins,
)
from loadtests.bench.servers import Cores, choose_cores, pinned
from loadtests.reports import Json, check_writable, conditions, warnings
from models.system.resources import usable_cores

GAP_S = 0.001  # shorter gaps are interrupts


@dataclass(frozen=True, slots=True)
class Site:
    """Where the servers run.

    Attributes:
        package: the folder from which our server runs; None: the checkout, which is not compiled.
        conditions: the full description for the report.
    """

    cores: Cores
    package: Path | None
    conditions: Json


def prepare(args: argparse.Namespace, console: Console, command: str) -> Site:
    """Run all checks before the measurement, and print its conditions.

    Raises:
        LoadTestError: if the results cannot be written, or our server is not compiled as requested.
    """
    check_writable(args.out)
    package = None if args.pure else COMPILED
    if package is not None:
        check_sources(package)
    if getattr(args, "before", None):
        check_machine_code(args.before, "--before needs an earlier commit's .compiled")
    cores = choose_cores()
    facts = {
        **conditions(command),
        "server_core": cores.server,
        "generator_core": cores.generator,
        "compiled": package is not None,
        "peers": {peer: pins(peer) for peer in WITH_ENVIRONMENT},
    }
    console.print(_describe(facts))
    return Site(cores, package, facts)


def share_stalled(cores: Cores, seconds: float) -> float:
    """Measure the share of the time in which the server's core did not run a busy process.

    Hypervisors and neighbours cause that; no server can have a better tail of latency.
    """
    lost_s = 0.0
    with pinned(cores.server):
        began = last = time.perf_counter()
        while last < began + seconds:
            now = time.perf_counter()
            if now - last > GAP_S:
                lost_s += now - last
            last = now
    return lost_s / (last - began)


def _describe(facts: Json) -> str:
    """Describe what a reader of the table must know first."""
    lines = [f"{facts['machine']}, {facts['date']}, torch {facts['versions']['torch']}"]
    if facts["server_core"] is None:
        lines.append("only one core can be used: server and load share it, nothing is pinned")
    else:
        lines.append(
            f"servers on core {facts['server_core']}, load from core {facts['generator_core']}"
        )
    lines.append(f"Torchlane is {'compiled' if facts['compiled'] else 'not compiled'}")
    if facts["settings_from_environment"]:
        lines.append(f"set for Torchlane: {', '.join(facts['settings_from_environment'])}")
    return "\n".join([*lines, *warnings(facts["load_average"], usable_cores())])
