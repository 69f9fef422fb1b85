"""The command line of the benchmark."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from loadtests.arguments import at_least_one
from loadtests.bench.workloads import NAMES, OURS, QUICK, QUICK_SERVERS, SERVERS


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for.

    Attributes:
        servers: that are measured with ours.
        seconds: measured, of each run.
    """

    workloads: tuple[str, ...]
    servers: tuple[str, ...]
    rounds: int
    seconds: int

    @classmethod
    def of(cls, given: argparse.Namespace) -> Options:
        """From the command line."""
        quick: bool = given.quick
        servers = given.servers or (QUICK_SERVERS if quick else SERVERS)
        return cls(
            workloads=tuple(given.workloads or (QUICK if quick else NAMES)),
            servers=tuple(server for server in servers if server != OURS),
            rounds=given.rounds or (1 if quick else 3),
            seconds=given.seconds or (2 if quick else 4),
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--workloads", nargs="+", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--servers",
        nargs="+",
        choices=(OURS, *SERVERS),
        metavar="NAME",
        help=f"of {', '.join(SERVERS)}",
    )
    parser.add_argument("--rounds", type=at_least_one, help="default: 3")
    parser.add_argument("--seconds", type=at_least_one, help="whole ones, each run; default: 4")
    parser.add_argument(
        "--quick", action="store_true", help="one round, two seconds, fewer workloads and servers"
    )
    add_common(parser)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options of every instrument that starts its own servers and reports on them."""
    parser.add_argument(
        "--pure", action="store_true", help="run ours from the checkout, not from what is compiled"
    )
    parser.add_argument("--artifacts", type=Path, default=Path("artifacts"), help="with digits")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="of .json and .html")
