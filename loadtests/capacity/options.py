"""The command line of open-loop load."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from loadtests.bench.options import add_comparison
from loadtests.bench.workloads import DIGITS
from models.system.command_lines import amount, count, positive, share
from models.system.local_paths import local_path

# As in `loadtests.traffic.workloads`, whose imports take long.
WORKLOADS = ("unique", "repeated", "batch", "binary", "npy", "image", "text", "mixed")
OVERLOAD_MODELS = ("linear", DIGITS)
LOADS = (0.7, 1.0, 2.0, 4.0)
# At 10 even the best server would have to reject 0.3 % of a load of 0.7; at 6 so would a server
# whose core is a tenth slower when it wakes than when it never sleeps: see docs/load-testing.md.
ITEM_MS = 5.0
LOWEST_RATE_PER_S = 1.0  # a server that cannot sustain this has no capacity


def _add_common(parser: argparse.ArgumentParser, out: str) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server")
    parser.add_argument("--model", help="default: the server's own default model")
    parser.add_argument("--workload", choices=WORKLOADS, default="unique")
    parser.add_argument("--arrivals", choices=("poisson", "uniform"), default="poisson")
    parser.add_argument("--slo-ms", type=amount, default=50.0, help="highest p99 (default: 50)")
    parser.add_argument(
        "--timeout-s",
        type=amount,
        default=2.0,
        help="a request without an answer after this time has failed (default: 2)",
    )
    parser.add_argument(
        "--connections", type=positive, default=512, help="most at once (default: 512)"
    )
    parser.add_argument(
        "--seed",
        type=count,
        default=int.from_bytes(os.urandom(4)),
        help="of arrivals and inputs (default: random; with a reused seed, the server's cache "
        "already has the answers)",
    )
    parser.add_argument(
        "--fail-ratio",
        type=share,
        default=0.001,
        help="highest share of failed requests (default: 0.001: one in a thousand, the fewest "
        "requests of a search's trial)",
    )
    parser.add_argument(
        "--out", type=local_path, default=Path(out), help=f"folder (default: {out})"
    )


def add_search(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "reports/capacity")
    parser.add_argument(
        "--budget-s", type=amount, default=120.0, help="of the whole search (default: 120)"
    )
    parser.add_argument(
        "--start-rate", type=amount, default=100.0, help="first rate tried (default: 100)"
    )
    parser.add_argument(
        "--max-rate", type=a_rate, default=20_000.0, help="highest rate (default: 20000)"
    )
    parser.add_argument(
        "--min-capacity",
        type=amount,
        help="exit code 1 below this rate in requests/s, or if the capacity is not confirmed",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, "reports/run")
    parser.add_argument("--rate", type=amount, required=True, help="requests per second")
    parser.add_argument("--seconds", type=amount, default=10.0, help="time (default: 10)")
    parser.add_argument("--fail-p99-ms", type=amount, help="exit code 1 above this")


def a_rate(text: str) -> float:
    """Parse a rate at which a search can end."""
    value = amount(text)
    if value < LOWEST_RATE_PER_S:
        raise argparse.ArgumentTypeError(f"{text!r} is below {LOWEST_RATE_PER_S:g}")
    return value


def add_overload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="2 s per load")
    parser.add_argument(
        "--models",
        nargs="+",
        choices=OVERLOAD_MODELS,
        default=OVERLOAD_MODELS,
        metavar="MODEL",
        help=f"the models: {', '.join(OVERLOAD_MODELS)} (default: both)",
    )
    parser.add_argument(
        "--loads",
        nargs="+",
        type=amount,
        default=LOADS,
        metavar="TIMES",
        help="multiples of the capacity (default: 0.7 1 2 4)",
    )
    parser.add_argument(
        "--seconds",
        type=amount,
        help="time per load (default: 5); 8 times as long below capacity, else 3 times for linear",
    )
    parser.add_argument(
        "--budget-s", type=amount, help="time per search for a capacity (default: 20)"
    )
    parser.add_argument(
        "--deadline-ms", type=positive, default=100, help="of each request (default: 100)"
    )
    parser.add_argument(
        "--item-ms", type=amount, default=ITEM_MS, help="cost in the linear model (default: 5)"
    )
    add_comparison(parser)
