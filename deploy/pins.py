"""Checks that constraints.txt pins every installed package, at its installed version.

python deploy/pins.py [FILE]

The version of an unpinned package may change, and such a package is not audited.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# pip comes with Python; torchlane is the project; torch's wheel pins the rest: see constraints.txt.
NOT_PINNED = re.compile(r"pip|torchlane|triton|nvidia-.*|cuda-.*")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return the exit code."""
    parser = argparse.ArgumentParser(prog="python deploy/pins.py")
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "constraints.txt")
    file: Path = parser.parse_args(arguments).file
    installed = {each.name: each.version for each in distributions()}
    wrong = differences(pins(file.read_text().splitlines()), installed)
    for line in wrong:
        sys.stderr.write(f"{file.name}: {line}\n")
    if wrong:
        sys.stderr.write("`make constraints` pins the installed versions\n")
    return 1 if wrong else 0


def pins(lines: Iterable[str]) -> dict[str, str]:
    """Map normalized package names to versions."""
    written = [line.partition("#")[0].strip() for line in lines]
    parted = [line.partition("==") for line in written if line]
    return {_name(name): version for name, _, version in parted}


def differences(pinned: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """List the differences, one line per package; ignore a build suffix such as +cpu."""
    wrong = []
    for name, version in sorted(installed.items()):
        wanted = pinned.get(_name(name))
        if wanted is None and not NOT_PINNED.fullmatch(_name(name)):
            wrong.append(f"{name} {version} is installed but not pinned")
        elif wanted is not None and wanted != version.partition("+")[0]:
            wrong.append(f"{name} {version} is installed, {wanted} is pinned")
    return wrong


def _name(written: str) -> str:
    return re.sub(r"[-_.]+", "-", written).lower()


if __name__ == "__main__":
    sys.exit(main())
