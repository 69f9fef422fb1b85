"""Limits that a run must keep, for CI: exit code 1 and a sentence for each that it broke."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """What is allowed.

    Attributes:
        p99_ms: the 99th percentile of latency, of all requests; None: any.
        ratio: the share of requests that may fail, 0..1.
        min_rps: requests per second that were answered rightly, over the run; None: any.
    """

    p99_ms: float | None = None
    ratio: float = 0.0
    min_rps: float | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run came to, of all users and workers together.

    Attributes:
        rps: requests per second that did not fail.
        exceptions: of the load test's own code.
    """

    requests: int
    failures: int
    p99_ms: float
    rps: float
    exceptions: int = 0


def broken(totals: Totals, limits: Limits) -> list[str]:
    """One sentence per limit that does not hold, with what was got and what is allowed."""
    if totals.requests == 0:
        return ["no request was sent, so nothing is known; see the errors above"]
    found = []
    ratio = totals.failures / totals.requests
    if ratio > limits.ratio:
        found.append(
            f"{totals.failures} of {totals.requests} requests failed: a share of {ratio:.4g}, "
            f"at most {limits.ratio:g} is allowed (--fail-ratio)"
        )
    if limits.p99_ms is not None and totals.p99_ms > limits.p99_ms:
        found.append(
            f"the p99 of latency is {totals.p99_ms:g} ms, at most {limits.p99_ms:g} ms is allowed "
            "(--fail-p99-ms)"
        )
    if limits.min_rps is not None and totals.rps < limits.min_rps:
        found.append(
            f"{totals.rps:.1f} requests/s were answered rightly, at least {limits.min_rps:g} are "
            "wanted (--fail-min-rps)"
        )
    if totals.exceptions:
        found.append(f"the load test itself failed {totals.exceptions} times; see the log")
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The gates, for Locust's command line."""
    group = parser.add_argument_group("Gates: exit code 1 where one is broken")
    group.add_argument(
        "--fail-p99-ms", type=positive, help="if the 99th percentile of latency is above"
    )
    group.add_argument(
        "--fail-ratio",
        type=share,
        default=0.0,
        help="if a larger share of the requests failed, 0..1; 0 unless told",
    )
    group.add_argument(
        "--fail-min-rps",
        type=positive,
        help="if fewer requests per second were answered rightly",
    )


def limits_of(options: argparse.Namespace) -> Limits:
    """What the command line asked for."""
    return Limits(options.fail_p99_ms, options.fail_ratio, options.fail_min_rps)


def totals_of(runner: Any) -> Totals:
    """What Locust has counted; a master's runner has the counts of its workers."""
    total = runner.stats.total
    return Totals(
        requests=total.num_requests,
        failures=total.num_failures,
        p99_ms=float(total.get_response_time_percentile(0.99)),
        rps=float(total.total_rps - total.total_fail_per_sec),
        exceptions=sum(each["count"] for each in runner.exceptions.values()),
    )


def positive(text: str) -> float:
    """A number above 0, of the command line.

    Raises:
        ArgumentTypeError: if it is none.
    """
    value = _number(text)
    if not value > 0 or math.isinf(value):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def share(text: str) -> float:
    """A number from 0 to 1, of the command line.

    Raises:
        ArgumentTypeError: if it is none.
    """
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a share from 0 to 1, got {text!r}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
