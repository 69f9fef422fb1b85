"""Prints the requirements in pyproject.toml, one per line, for a separate image layer.

python requirements.py pyproject.toml [--extra NAME ...] [--without NAME ...]
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAME = re.compile(r"[A-Za-z0-9._-]+")
OWN = re.compile(r"torchlane\[([a-z,]+)\]")  # extras that another extra includes


def requirements(
    project: dict[str, Any], extras: Sequence[str], without: Sequence[str]
) -> list[str]:
    """Return the requirements of the project and of some extras, without the excluded names.

    Args:
        project: the table `project` of pyproject.toml.
        extras: names in its `optional-dependencies`.
        without: names of distributions to leave out.

    Raises:
        ValueError: if an extra is missing, or nothing requires an excluded name.
    """
    found: list[str] = list(project["dependencies"])
    optional: dict[str, list[str]] = project["optional-dependencies"]
    wanted = list(dict.fromkeys(extras))
    for extra in wanted:  # grows while it is iterated
        if extra not in optional:
            raise ValueError(f"there is no extra {extra!r}; available: {', '.join(optional)}")
        for each in optional[extra]:
            own = OWN.fullmatch(each)
            if own is None:
                found.append(each)
            else:
                wanted += [more for more in own[1].split(",") if more not in wanted]
    names = {_name(each) for each in found}
    if unknown := set(without) - names:
        raise ValueError(f"nothing requires {', '.join(sorted(unknown))}")
    return [each for each in found if _name(each) not in without]


def _name(requirement: str) -> str:
    found = NAME.match(requirement)
    if found is None:
        raise ValueError(f"{requirement!r} is not a requirement")
    return found[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the requirements; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--extra", action="append", default=[])
    parser.add_argument("--without", action="append", default=[])
    given = parser.parse_args(arguments)
    try:
        project = tomllib.loads(given.file.read_text())["project"]
        lines = requirements(project, given.extra, given.without)
    except ValueError as error:
        sys.stderr.write(f"requirements: {error}\n")
        return 2
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
