"""Where and with what the servers were measured, for machines and for people."""

from __future__ import annotations

from pathlib import Path

from loadtests.bench.environments import WITH_ENVIRONMENT, pins
from loadtests.bench.servers import Cores
from loadtests.reports import Json, conditions, warnings
from models.resources import usable_cores


def where(command: str, cores: Cores, package: Path | None) -> Json:
    """The conditions, with cores and versions of the servers."""
    return {
        **conditions(command),
        "server_core": cores.server,
        "generator_core": cores.generator,
        "compiled": package is not None,
        "peers": {peer: pins(peer) for peer in WITH_ENVIRONMENT},
    }


def told(found: Json) -> str:
    """What a reader of the table has to know first."""
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
