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
from models.local_paths import local_path
from models.resources import usable_cores

GAP_S = 0.001  # shorter gaps are interrupts


@dataclass(frozen=True, slots=True)
class Place:
    """Where the servers run.

    Attributes:
        package: the folder from which our server runs; None: the checkout, which is not compiled.
        conditions: the full description for the report.
    """

    cores: Cores
    package: Path | None
    conditions: Json


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options of every load test that starts its own servers and writes a report."""
    parser.add_argument(
        "--pure", action="store_true", help="run ours from the checkout, not compiled"
    )
    parser.add_argument(
        "--out", type=local_path, default=Path("reports"), help="for .json and .html"
    )


def add_comparison(parser: argparse.ArgumentParser) -> None:
    """Add the options of those that serve models of the catalog."""
    parser.add_argument(
        "--before",
        type=local_path,
        metavar="DIR",
        help="an earlier commit's .compiled, to compare with",
    )
    parser.add_argument(
        "--artifacts", type=local_path, default=Path("artifacts"), help="has digits"
    )
    add_common(parser)


def prepare(given: argparse.Namespace, console: Console, command: str) -> Place:
    """Run all checks before the measurement, and print its conditions.

    Raises:
        LoadTestError: if the results cannot be written, or our server is not compiled as requested.
    """
    check_writable(given.out)
    package = None if given.pure else COMPILED
    if package is not None:
        check_sources(package)
    if getattr(given, "before", None):
        check_machine_code(given.before, "--before needs an earlier commit's .compiled")
    cores = choose_cores()
    found = {
        **conditions(command),
        "server_core": cores.server,
        "generator_core": cores.generator,
        "compiled": package is not None,
        "peers": {peer: pins(peer) for peer in WITH_ENVIRONMENT},
    }
    console.print(_told(found))
    return Place(cores, package, found)


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


def _told(found: Json) -> str:
    """Describe what a reader of the table must know first."""
    lines = [f"{found['machine']}, {found['date']}, torch {found['versions']['torch']}"]
    if found["server_core"] is None:
        lines.append("only one core can be used: server and load share it, nothing is pinned")
    else:
        lines.append(
            f"servers on core {found['server_core']}, load from core {found['generator_core']}"
        )
    lines.append(f"Torchlane is {'compiled' if found['compiled'] else 'not compiled'}")
    if found["settings_from_environment"]:
        lines.append(f"set for Torchlane: {', '.join(found['settings_from_environment'])}")
    return "\n".join([*lines, *warnings(found["load_average"], usable_cores())])
