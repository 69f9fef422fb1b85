"""Checks that constraints.txt pins every installed package, at the version that is installed.

python deploy/pins.py [FILE]

What is not pinned is another version tomorrow, and audited by nobody.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# pip comes with Python; the project itself; what torch's own wheel pins (see constraints.txt).
NOT_PINNED = re.compile(r"pip|torchlane|triton|nvidia-.*|cuda-.*")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python deploy/pins.py")
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "constraints.txt")
    file: Path = parser.parse_args(arguments).file
    installed = {each.name: each.version for each in distributions()}
    wrong = differences(pins(file.read_text().splitlines()), installed)
    for line in wrong:
        sys.stderr.write(f"{file.name}: {line}\n")
    if wrong:
        sys.stderr.write("`make constraints` pins what is installed now\n")
    return 1 if wrong else 0


def pins(lines: Iterable[str]) -> dict[str, str]:
    """Name, as indexes write it, to version."""
    written = [line.partition("#")[0].strip() for line in lines]
    parted = [line.partition("==") for line in written if line]
    return {_name(name): version for name, _, version in parted}


def differences(pinned: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """What is wrong, a line for each package; a build's own suffix (+cpu) is no difference."""
    wrong = []
    for name, version in sorted(installed.items()):
        wanted = pinned.get(_name(name))
        if wanted is None and not NOT_PINNED.fullmatch(_name(name)):
            wrong.append(f"{name} {version} is installed and not pinned")
        elif wanted is not None and wanted != version.partition("+")[0]:
            wrong.append(f"{name} {version} is installed, {wanted} is pinned")
    return wrong


def _name(written: str) -> str:
    return re.sub(r"[-_.]+", "-", written).lower()


if __name__ == "__main__":
    sys.exit(main())
