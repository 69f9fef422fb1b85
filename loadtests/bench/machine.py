"""The place and conditions of a measurement, for machines and people."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from loadtests.bench.environments import COMPILED, WITH_ENVIRONMENT, check_sources, pins
from loadtests.bench.servers import Cores, choose_cores
from loadtests.reports import Json, check_writable, conditions, warnings
from models.resources import usable_cores


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


def prepare(given: argparse.Namespace, console: Console, command: str) -> Place:
    """Run all checks before the measurement, and print its conditions.

    Raises:
        LoadTestError: if the results cannot be written, or our server is not compiled as requested.
    """
    check_writable(given.out)
    package = None if given.pure else COMPILED
    if package is not None:
        check_sources(package)
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
