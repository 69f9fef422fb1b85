"""Under which conditions the figures were measured."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from importlib.metadata import version
from typing import Any

from loadtests.bench import wrk
from loadtests.bench.environments import WITH_ENVIRONMENT, pins
from loadtests.bench.options import Options
from loadtests.bench.servers import Cores
from models.processor import cpu_name
from models.resources import usable_cores

PREFIX = "TORCHLANE_"
BUSY_LOAD = 0.5  # a load average above it: somebody else is using the machine
OURS = ("torch", "numpy", "fastapi", "uvicorn", "uvloop", "httptools", "orjson")


def conditions(command: str, options: Options, cores: Cores) -> dict[str, Any]:
    """Of the benchmark: also what makes its load."""
    return {
        **where(command, cores, compiled=options.package is not None),
        "generator": "wrk" if wrk.find() else "asyncio",
        "generator_version": generator(),
        "rounds": options.rounds,
        "seconds": options.seconds,
    }


def where(command: str, cores: Cores, *, compiled: bool) -> dict[str, Any]:
    """Machine, versions, date and settings; of settings in the environment only the names."""
    return {
        "command": command,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "processor": cpu_name(),
        "cores": usable_cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "server_core": cores.server,
        "generator_core": cores.generator,
        "compiled": compiled,
        "versions": {name: version(name) for name in OURS},
        "peers": {peer: pins(peer) for peer in WITH_ENVIRONMENT},
        # their names only: a value may be a secret
        "settings_from_environment": sorted(n for n in os.environ if n.startswith(PREFIX)),
    }


def generator() -> str:
    """What makes the load."""
    path = wrk.find()
    if path is None:
        return "the asyncio generator of this project (wrk is not installed)"
    told = subprocess.run(  # nosec B603 # wrk, as shutil.which found it
        [path, "-v"], capture_output=True, text=True, check=False
    )
    return (told.stdout or told.stderr).splitlines()[0].partition("[")[0].strip()


def headline(found: dict[str, Any], folder: str) -> str:
    """What a reader of the table has to know first."""
    lines = [
        f"{folder}; load by {found['generator_version']}",
        f"{found['rounds']} round(s) of {found['seconds']} s a run",
    ]
    return "\n".join([*lines, place(found)])


def place(found: dict[str, Any]) -> str:
    """The machine, for people."""
    lines = [
        f"{found['processor']}, {found['cores']} cores, {found['date']}",
        f"torch {found['versions']['torch']}",
    ]
    if found["server_core"] is None:
        lines.append("only one core can be used: server and load share it, nothing is pinned")
    else:
        lines.append(
            f"servers on core {found['server_core']}, load from core {found['generator_core']}"
        )
    lines.append(f"Torchlane is {'compiled' if found['compiled'] else 'not compiled'}")
    if found["settings_from_environment"]:
        lines.append(f"set for Torchlane: {', '.join(found['settings_from_environment'])}")
    if found["load_average_before"] > BUSY_LOAD:
        lines.append(f"the machine was not idle: load average {found['load_average_before']:g}")
    return "\n".join(lines)
