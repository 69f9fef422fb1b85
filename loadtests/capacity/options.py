"""The command line of open-loop load."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path

from loadtests.traffic.workloads import WORKLOADS

LOWEST_RATE_PER_S = 1.0  # a server that cannot keep up so little has no capacity


class OptionsError(Exception):
    """Options that do not go together; the message says which, and why."""


def add_common(parser: argparse.ArgumentParser, out: str) -> None:
    """What the search and the single run have in common."""
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server")
    parser.add_argument("--model", help="default: the server's own default model")
    parser.add_argument("--workload", choices=list(WORKLOADS), default="unique")
    parser.add_argument("--arrivals", choices=("poisson", "uniform"), default="poisson")
    parser.add_argument("--slo-ms", type=above_zero, default=50.0, help="highest p99 (default: 50)")
    parser.add_argument(
        "--timeout-s",
        type=above_zero,
        default=2.0,
        help="a request without an answer for so long has failed (default: 2)",
    )
    parser.add_argument(
        "--connections", type=at_least_one, default=512, help="at most so many (default: 512)"
    )
    parser.add_argument(
        "--processes",
        type=at_least_one,
        default=1,
        help="generator processes that share the rate (default: 1)",
    )
    parser.add_argument(
        "--seed",
        type=from_zero,
        default=int.from_bytes(os.urandom(4)),
        help="of arrivals and inputs (default: drawn; with one used before, a server's cache has "
        "the answers already)",
    )
    parser.add_argument("--out", type=Path, default=Path(out), help=f"folder (default: {out})")


def add_search(parser: argparse.ArgumentParser) -> None:
    """What only the search has."""
    parser.add_argument(
        "--fail-ratio",
        type=share,
        default=0.001,
        help="highest share of failed requests (default: 0.001: one in the thousand that every "
        "trial has at least)",
    )
    parser.add_argument(
        "--budget-s", type=above_zero, default=120.0, help="for the whole search (default: 120)"
    )
    parser.add_argument(
        "--start-rate", type=above_zero, default=100.0, help="first rate tried (default: 100)"
    )
    parser.add_argument(
        "--max-rate", type=a_rate, default=20_000.0, help="highest rate (default: 20000)"
    )
    parser.add_argument(
        "--min-capacity",
        type=above_zero,
        help="exit code 1 below so many requests/s, or if the capacity is not confirmed",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """What only the single run has."""
    parser.add_argument("--rate", type=above_zero, required=True, help="requests per second")
    parser.add_argument("--seconds", type=above_zero, default=10.0, help="measured (default: 10)")
    parser.add_argument(
        "--settle-s", type=above_zero, default=1.0, help="loaded before that (default: 1)"
    )
    parser.add_argument("--fail-p99-ms", type=above_zero, help="exit code 1 above it")
    parser.add_argument(
        "--fail-ratio",
        type=share,
        default=0.001,
        help="exit code 1 if a larger share of the requests fails (default: 0.001)",
    )


def above_zero(text: str) -> float:
    """A finite number above zero."""
    return _checked(text, lambda value: value > 0, "above zero")


def a_rate(text: str) -> float:
    """A rate that a search can end at."""
    return _checked(text, lambda value: value >= LOWEST_RATE_PER_S, "1 or more")


def from_zero(text: str) -> int:
    """A whole number from 0."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def share(text: str) -> float:
    """From 0 up to, not including, 1."""
    return _checked(text, lambda value: 0 <= value < 1, "from 0 to below 1")


def at_least_one(text: str) -> int:
    """A whole number from 1."""
    return int(_checked(text, lambda value: value >= 1 and value == int(value), "a whole number"))


def _checked(text: str, good: Callable[[float], bool], wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and good(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return value
