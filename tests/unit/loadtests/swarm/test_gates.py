"""Each gate says the measured value and the limit; a gate that holds says nothing."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest

from loadtests.swarm.gates import add_arguments, broken


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def found(limits: str = "", requests: int = 1000, failures: int = 0, errors: int = 0) -> list[str]:
    """Broken gates of a run of 310 requests/s, 10 of which failed, with a p99 of 20 ms."""
    total = SimpleNamespace(
        num_requests=requests,
        num_failures=failures,
        total_rps=310.0,
        total_fail_per_sec=10.0,
        get_response_time_percentile=lambda share: {0.99: 20}[share],
    )
    exceptions = {"a": {"count": errors}} if errors else {}
    runner = SimpleNamespace(stats=SimpleNamespace(total=total), exceptions=exceptions)
    return broken(runner, options(*limits.split()))


@pytest.mark.parametrize(
    ("limits", "failures"),
    [("", 0), ("--fail-p99-ms 20 --fail-min-rps 300", 0), ("--fail-ratio 0.01", 10)],
)
def test_good_run_breaks_no_gate(limits: str, failures: int) -> None:
    assert found(limits, failures=failures) == []


@pytest.mark.parametrize(
    ("limits", "failures", "errors", "sentence"),
    [
        (
            "",
            1,
            0,
            "1 of 1000 requests failed: a share of 0.001, at most 0 is allowed (--fail-ratio)",
        ),
        (
            "--fail-ratio 0.01",
            20,
            0,
            "20 of 1000 requests failed: a share of 0.02, at most 0.01 is allowed (--fail-ratio)",
        ),
        (
            "--fail-p99-ms 19.5",
            0,
            0,
            "the p99 of latency is 20 ms, at most 19.5 ms is allowed (--fail-p99-ms)",
        ),
        (
            "--fail-min-rps 301",  # what failed does not count as answered
            0,
            0,
            "300.0 requests/s were answered correctly, at least 301 are required (--fail-min-rps)",
        ),
        ("", 0, 2, "the load test itself failed 2 times; see the log"),
    ],
)
def test_broken_gate_reports_value_and_limit(
    limits: str, failures: int, errors: int, sentence: str
) -> None:
    assert found(limits, failures=failures, errors=errors) == [sentence]


def test_a_run_without_requests_fails() -> None:
    (sentence,) = found("--fail-ratio 1", requests=0)
    assert "no request was sent" in sentence
