"""The options of load tests that start servers, and of `torchlane load bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtests.bench.workloads import NAMES, OURS, SERVERS
from models.system.command_lines import positive
from models.system.local_paths import local_path

ROUNDS, QUICK_ROUNDS = 7, 3


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options of every load test that starts its own servers and writes a report."""
    parser.add_argument(
        "--pure", action="store_true", help="run ours from the checkout, not compiled"
    )
    parser.add_argument(
        "--out", type=local_path, default=Path("reports"), help="for .json and .html"
    )


def add_comparison(parser: argparse.ArgumentParser) -> None:
    """Add the options of those that serve models of the catalog."""
    parser.add_argument(
        "--before",
        type=local_path,
        metavar="DIR",
        help="an earlier commit's .compiled, to compare with",
    )
    parser.add_argument(
        "--artifacts", type=local_path, default=Path("artifacts"), help="has digits"
    )
    add_common(parser)


def add_bench(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--rounds", type=positive, help=f"default: {ROUNDS}")
    parser.add_argument(
        "--seconds", type=positive, default=1, help="per turn, a whole number; default: 1"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_ROUNDS} rounds, fewer workloads and servers",
    )
    add_comparison(parser)
