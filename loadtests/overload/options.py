"""The command line of the overload table."""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtests.capacity.options import above_zero, at_least_one
from loadtests.overload.cases import NAMES, SERVERS

LOADS = (0.7, 1.0, 2.0, 4.0)
# At 10 the best of servers would have to refuse 0.3 % of a load of 0.7, and at 6 one whose core
# is a tenth slower when it wakes than when it never sleeps: see docs/load-testing.md.
ITEM_MS = 5.0
DIGITS_CORES = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be said."""
    parser.add_argument("--quick", action="store_true", help="2 s a load, ours alone")
    parser.add_argument(
        "--models", nargs="+", choices=NAMES, default=NAMES, help="default: both", metavar="MODEL"
    )
    parser.add_argument(
        "--servers",
        nargs="+",
        choices=SERVERS,
        metavar="SERVER",
        help=f"of {', '.join(SERVERS)} (default: all)",
    )
    parser.add_argument(
        "--loads",
        nargs="+",
        type=above_zero,
        default=LOADS,
        metavar="TIMES",
        help="times the capacity (default: 0.7 1 2 4)",
    )
    parser.add_argument(
        "--seconds",
        type=above_zero,
        help="counted, of each load; of linear 3 times that, 8 times below capacity (default: 5)",
    )
    parser.add_argument(
        "--deadline-ms", type=at_least_one, default=100, help="of every request (default: 100)"
    )
    parser.add_argument(
        "--item-ms", type=above_zero, default=ITEM_MS, help="of the linear model (default: 5)"
    )
    parser.add_argument(
        "--digits-cores",
        type=above_zero,
        default=DIGITS_CORES,
        help="share of a core for every server of digits, by a quota of the kernel (default: 1, "
        "all of it; with 0.3 the generator can offer four times what this server holds)",
    )
    parser.add_argument(
        "--pure", action="store_true", help="run ours from the checkout, not from what is compiled"
    )
    parser.add_argument("--artifacts", type=Path, default=Path("artifacts"))
    parser.add_argument(
        "--out", type=Path, default=Path("reports"), help="of overload.json and .md"
    )
