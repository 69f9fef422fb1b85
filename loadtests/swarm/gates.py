"""Limits for a run in CI: exit code 1 and a sentence for each broken one."""

from __future__ import annotations

import argparse
from typing import Any

from models.system.command_lines import amount, share


def broken_gates(runner: Any, options: argparse.Namespace) -> list[str]:
    """Return one sentence per broken limit, with the measured value and the limit.

    Args:
        runner: Locust's; a master has the counts of its workers.
        options: of the command line.
    """
    total = runner.stats.total
    requests, failures = total.num_requests, total.num_failures
    if requests == 0:
        return ["no request was sent, so there is no result; see the errors above"]
    p99_ms = float(total.get_response_time_percentile(0.99))
    answered_per_s = float(total.total_rps - total.total_fail_per_sec)
    exceptions = sum(each["count"] for each in runner.exceptions.values())
    sentences = []
    if failures / requests > options.fail_ratio:
        sentences.append(
            f"{failures} of {requests} requests failed: a share of {failures / requests:.4g}, "
            f"at most {options.fail_ratio:g} is allowed (--fail-ratio)"
        )
    if options.fail_p99_ms is not None and p99_ms > options.fail_p99_ms:
        sentences.append(
            f"the p99 of latency is {p99_ms:g} ms, at most {options.fail_p99_ms:g} ms is allowed "
            "(--fail-p99-ms)"
        )
    if options.fail_min_rps is not None and answered_per_s < options.fail_min_rps:
        sentences.append(
            f"{answered_per_s:.1f} requests/s were answered correctly, at least "
            f"{options.fail_min_rps:g} are required (--fail-min-rps)"
        )
    if exceptions:
        sentences.append(f"the load test itself failed {exceptions} times; see the log")
    return sentences


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Gates: exit code 1 if one is broken")
    group.add_argument(
        "--fail-p99-ms", type=amount, help="if the 99th percentile of latency is above"
    )
    group.add_argument(
        "--fail-ratio",
        type=share,
        default=0.0,
        help="if a larger share of the requests failed, 0..1 (default: 0)",
    )
    group.add_argument(
        "--fail-min-rps",
        type=amount,
        help="if fewer requests per second were answered correctly",
    )
