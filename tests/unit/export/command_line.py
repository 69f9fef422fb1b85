"""Running the command line, and looking at what it left."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from export.cli import main
from models.definitions.definition import Definition
from models.manifest import Manifest
from tests.unit.export.definitions import CATALOG, Close, close_calls, definition

# What takes milliseconds.
QUICK = ("--variants", "script", "--max-batch-size", "2", "--threads", "1")
WITH_CLOSE = CATALOG | {"close": definition(Close, train=None, held_out=close_calls)}


def run(*arguments: object, catalog: Mapping[str, Definition] = WITH_CLOSE) -> tuple[int, str]:
    """The exit code and what was printed."""
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    return main([str(each) for each in arguments], catalog, console), printed.getvalue()


def files(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def manifest_of(folder: Path) -> Manifest:
    return Manifest.model_validate_json((folder / "manifest.json").read_bytes())


def complete(folder: str, *variants: str) -> list[str]:
    names = [f"{variant}.pt" for variant in variants or ("script",)]
    return sorted(
        f"{folder}/{name}" for name in ("manifest.json", "manifest.sha256", "report.html", *names)
    )
