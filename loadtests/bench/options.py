"""The command line of the benchmark."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from loadtests.arguments import at_least_one
from loadtests.bench.workloads import BEFORE, NAMES, OURS, PYTHON, QUICK, QUICK_SERVERS, SERVERS
from models.local_paths import local_path

ROUNDS, QUICK_ROUNDS = 7, 3


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed options.

    Attributes:
        servers: to measure with ours.
        seconds: measured per turn.
        before: another compiled folder to compare ours with.
    """

    workloads: tuple[str, ...]
    servers: tuple[str, ...]
    rounds: int
    seconds: int
    before: Path | None = None

    @classmethod
    def of(cls, given: argparse.Namespace) -> Options:
        """Read the command line."""
        quick: bool = given.quick
        servers = given.servers or (QUICK_SERVERS if quick else SERVERS)
        without = {OURS, BEFORE} | ({PYTHON} if given.pure else set())  # the same as ours
        return cls(
            workloads=tuple(given.workloads or (QUICK if quick else NAMES)),
            servers=(
                *(server for server in servers if server not in without),
                *((BEFORE,) if given.before else ()),
            ),
            rounds=given.rounds or (QUICK_ROUNDS if quick else ROUNDS),
            seconds=given.seconds,
            before=given.before,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--workloads", nargs="+", choices=NAMES, metavar="NAME", help=f"of: {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--servers",
        nargs="+",
        choices=(OURS, *SERVERS),
        metavar="NAME",
        help=f"servers to measure with ours: {', '.join(SERVERS)}",
    )
    parser.add_argument("--rounds", type=at_least_one, help=f"default: {ROUNDS}")
    parser.add_argument(
        "--seconds", type=at_least_one, default=1, help="per turn, a whole number; default: 1"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_ROUNDS} rounds, fewer workloads and servers",
    )
    parser.add_argument(
        "--before",
        type=local_path,
        metavar="DIR",
        help="an earlier commit's .compiled, to compare with",
    )
    add_common(parser)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options of every load test that starts its own servers and writes a report."""
    parser.add_argument(
        "--pure", action="store_true", help="run ours from the checkout, not compiled"
    )
    parser.add_argument(
        "--artifacts", type=local_path, default=Path("artifacts"), help="has digits"
    )
    parser.add_argument(
        "--out", type=local_path, default=Path("reports"), help="for .json and .html"
    )
