"""Each gate says what it got and what is allowed; what holds says nothing."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest

from loadtests.swarm.gates import Limits, Totals, add_arguments, broken, limits_of, totals_of

GOOD = Totals(requests=1000, failures=0, p99_ms=20, rps=300)


def test_a_good_run_breaks_nothing() -> None:
    assert broken(GOOD, Limits()) == []
    assert broken(GOOD, Limits(p99_ms=20, ratio=0, min_rps=300)) == []


@pytest.mark.parametrize(
    ("totals", "limits", "sentence"),
    [
        (
            Totals(1000, 1, 20, 300),
            Limits(),
            "1 of 1000 requests failed: a share of 0.001, at most 0 is allowed (--fail-ratio)",
        ),
        (
            Totals(1000, 20, 20, 300),
            Limits(ratio=0.01),
            "20 of 1000 requests failed: a share of 0.02, at most 0.01 is allowed (--fail-ratio)",
        ),
        (
            GOOD,
            Limits(p99_ms=19.5),
            "the p99 of latency is 20 ms, at most 19.5 ms is allowed (--fail-p99-ms)",
        ),
        (
            GOOD,
            Limits(min_rps=400),
            "300.0 requests/s were answered rightly, at least 400 are wanted (--fail-min-rps)",
        ),
        (
            Totals(1000, 0, 20, 300, exceptions=2),
            Limits(),
            "the load test itself failed 2 times; see the log",
        ),
    ],
)
def test_a_broken_gate_says_got_and_limit(totals: Totals, limits: Limits, sentence: str) -> None:
    assert broken(totals, limits) == [sentence]


def test_every_broken_gate_has_its_sentence() -> None:
    assert len(broken(Totals(10, 5, 99, 1, 1), Limits(10, 0.1, 50))) == 4


def test_failures_up_to_the_ratio_are_allowed() -> None:
    assert broken(Totals(1000, 10, 20, 300), Limits(ratio=0.01)) == []


def test_a_run_without_requests_fails() -> None:
    (sentence,) = broken(Totals(0, 0, 0, 0), Limits(ratio=1))
    assert "no request was sent" in sentence


def test_requests_that_failed_do_not_count_as_answered() -> None:
    total = SimpleNamespace(
        num_requests=1000,
        num_failures=990,
        total_rps=100.0,
        total_fail_per_sec=99.0,
        get_response_time_percentile=lambda share: {0.99: 7}[share],
    )
    exceptions = {"a": {"count": 2}, "b": {"count": 1}}
    runner = SimpleNamespace(stats=SimpleNamespace(total=total), exceptions=exceptions)
    assert totals_of(runner) == Totals(1000, 990, 7.0, 1.0, exceptions=3)
    (sentence,) = broken(Totals(1000, 990, 7.0, 1.0), Limits(ratio=1, min_rps=50))
    assert sentence.startswith("1.0 requests/s were answered rightly")


def parsed(*arguments: str) -> Limits:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return limits_of(parser.parse_args(arguments))


def test_limits_come_from_the_command_line() -> None:
    assert parsed() == Limits(None, 0.0, None)
    assert parsed("--fail-p99-ms", "50", "--fail-ratio", "0.01", "--fail-min-rps", "9.5") == Limits(
        50, 0.01, 9.5
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--fail-p99-ms", "0"),
        ("--fail-p99-ms", "inf"),
        ("--fail-p99-ms", "fast"),
        ("--fail-ratio", "1.5"),
        ("--fail-ratio", "nan"),
        ("--fail-min-rps", "-1"),
    ],
)
def test_limits_that_make_no_sense_are_refused(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(*arguments)
    assert arguments[1] in capsys.readouterr().err
