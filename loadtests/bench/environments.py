"""Creates an environment for each peer with its pinned versions: `make bench-peers`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from loadtests.bench.workloads import INFINITY, KSERVE, LITSERVE, MLSERVER, MOSEC, PYTRITON
from loadtests.errors import LoadTestError

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(__file__).resolve().parent / "peers"
ENVIRONMENTS = ROOT / ".bench"
COMPILED = ROOT / ".compiled"  # where `make compiled` puts our server
WITH_ENVIRONMENT = (MOSEC, LITSERVE, MLSERVER, PYTRITON, KSERVE, INFINITY)  # the others run in ours
SOURCES = (".py", ".cpp")
REQUIREMENTS = "requirements.txt"
TORCH = "torch=="
INDEX_VARIABLE = "TORCH_INDEX_URL"  # as in the Makefile: the index for torch


class SetupError(LoadTestError):
    """A peer's environment cannot be created; the message has the failed command."""


def python_of(peer: str) -> Path:
    """Return the interpreter of a peer's environment."""
    return ENVIRONMENTS / peer / "bin" / "python"


def why_not(peer: str) -> str | None:
    """Say why a peer cannot run and what to do; None if it can."""
    if peer not in WITH_ENVIRONMENT:
        return None
    advice = "`make bench-peers` creates it"
    made = ENVIRONMENTS / peer / REQUIREMENTS
    if not made.exists():
        return f"its environment {ENVIRONMENTS / peer} does not exist; {advice}"
    if made.read_bytes() != (PEERS / peer / REQUIREMENTS).read_bytes():
        return f"its environment {ENVIRONMENTS / peer} has other versions; {advice} again"
    return None


def check_sources(package: Path) -> None:
    """Check that a folder has our server, compiled from this checkout's current sources.

    Raises:
        SetupError: if not, with what to do.
    """
    advice = "run `make compiled`, or use --pure, which runs the checkout"
    check_machine_code(package, advice)
    sources = (file for name in ("app", "models") for file in (ROOT / name).rglob("*"))
    for file in sorted(file for file in sources if file.suffix in SOURCES):
        copy = package / file.relative_to(ROOT)
        if not copy.exists() or copy.read_bytes() != file.read_bytes():
            raise SetupError(
                f"{file.relative_to(ROOT)} has changed since {package} was built: {advice}"
            )


def check_machine_code(package: Path, advice: str) -> None:
    """Check that a folder has a compiled server, from any sources.

    Raises:
        SetupError: if not, with what to do.
    """
    if not list(package.glob("app/**/*.so")):
        raise SetupError(f"there is no compiled server in {package}: {advice}")


def pins(peer: str) -> dict[str, str]:
    """Return the versions that a peer runs with, by distribution."""
    lines = (PEERS / peer / REQUIREMENTS).read_text().splitlines()
    pairs = (line.partition("==") for line in lines if "==" in line and line[0] != "#")
    return {name.strip(): version.strip() for name, _, version in pairs}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the environments to create."""
    parser.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(WITH_ENVIRONMENT))


def set_up(given: argparse.Namespace, console: Console, _: str) -> int:
    """Create environments that are missing or have other versions; return the exit code.

    Raises:
        SetupError: if a command fails.
    """
    for peer in given.peers or WITH_ENVIRONMENT:
        if peer not in WITH_ENVIRONMENT:
            raise SetupError(f"there is no peer {peer!r}: {', '.join(WITH_ENVIRONMENT)}")
        if why_not(peer) is None:
            console.print(f"{peer}: ready")
            continue
        console.print(f"{peer}: creating {ENVIRONMENTS / peer}, which takes some minutes")
        _make(peer)
        console.print(f"{peer}: made")
    return 0


def _make(peer: str) -> None:
    folder, requirements = ENVIRONMENTS / peer, PEERS / peer / REQUIREMENTS
    venv.create(folder, clear=True, with_pip=True)
    index = os.environ.get(INDEX_VARIABLE)
    torch = f"{TORCH}{pins(peer)['torch']}"
    # torch first and alone, so that no other package's requirement selects a different build
    _pip(peer, ["--no-deps", *(["--index-url", index] if index else []), torch])
    _pip(peer, ["--requirement", str(requirements)])
    (folder / REQUIREMENTS).write_bytes(requirements.read_bytes())  # last, as the mark "ready"


def _pip(peer: str, arguments: Sequence[str]) -> None:
    command = [str(python_of(peer)), "-m", "pip", "install", "--quiet", *arguments]
    done = subprocess.run(command, stdout=sys.stderr, check=False)  # nosec B603 # our pip
    if done.returncode != 0:
        raise SetupError(f"{peer}: `{' '.join(command)}` failed; see above")
