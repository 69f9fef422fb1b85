"""The common parts of all reports: the conditions of a measurement, tables and files."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from loadtests.errors import UsageError
from models.processor import cpu_name
from models.system.distributions import installed_version
from models.system.resources import usable_cores

SETTINGS = "TORCHLANE_"
DISTRIBUTIONS = ("torch", "numpy", "fastapi", "uvicorn", "uvloop", "httptools", "orjson")
BUSY_SHARE = 0.25  # of the cores in use before the measurement
Json = dict[str, Any]


def conditions(command: str) -> Json:
    """Return command, date, machine, versions and names of settings for a measurement.

    The values of settings may be secrets.
    """
    return {
        "command": command,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": f"{cpu_name()}, {usable_cores()} cores, {platform.system()} "
        f"{platform.machine()}",
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
        "versions": {name: installed_version(name) for name in DISTRIBUTIONS},
        "settings_from_environment": sorted(n for n in os.environ if n.startswith(SETTINGS)),
    }


def warnings(load_average: float, cores: int) -> list[str]:
    """Return what may spoil the measurement, before it begins."""
    if load_average <= BUSY_SHARE * cores:
        return []
    note = (
        f"Note: the load average is {load_average:.1f} on {cores} cores: something else uses this "
        "machine, so figures will be lower, and vary between runs."
    )
    return [note]


def check_writable(folder: Path) -> None:
    """Create the folder of the results before the measurement.

    Raises:
        UsageError: if nothing can be written there.
    """
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def write(folder: Path, name: str, fields: Json, console: Console) -> None:
    """Write NAME.json, and NAME.html with everything that a recording console has printed.

    Raises:
        UsageError: if they cannot be written.
    """
    with _writing(folder):  # the figures first, because they cannot be reproduced
        content = orjson.dumps(fields, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
        (folder / f"{name}.json").write_bytes(content + b"\n")
        console.save_html(str(folder / f"{name}.html"))
    console.print(f"written to {folder}/{name}.html and .json")


def cut_short() -> str | None:
    """Return, in a `finally`, why the measurement ended early; None if it did not."""
    error = sys.exception()
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "interrupted"
    return None if error is None else str(error) or type(error).__name__


def table_of(columns: Sequence[str], title: str | None = None, *, names: int = 1) -> Table:
    """Create a table: the first columns are names, aligned left; all others are figures."""
    table = Table(box=box.SIMPLE, title=title, title_justify="left", pad_edge=False)
    table.collapse_padding = True
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at < names else "right", no_wrap=True)
    return table


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written: {error.strerror}") from error
