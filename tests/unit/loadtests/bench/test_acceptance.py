"""Demands and verdicts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadtests.bench.acceptance import HALF_LOAD, Demand, Judged, is_met, judge
from loadtests.bench.workloads import BARE, LIMIT, WORKLOADS

FASTER = Demand("json-32", "over mosec", least=1.6, aim=2.0)
SOONER = Demand("one-connection", "p50", least=0.7, aim=0.5, lower=True)


@pytest.mark.parametrize(
    ("demand", "rounds", "verdict"),
    [
        (FASTER, (), "not measured"),
        (FASTER, (1.5, 1.59, 9.0), "missed"),
        (FASTER, (1.5, 1.6, 9.0), "met"),
        (FASTER, (1.0, 2.0, 2.5), "aim met"),
        (SOONER, (0.71,), "missed"),
        (SOONER, (0.7,), "met"),
        (SOONER, (0.5,), "aim met"),
        (Demand("w", "no aim", least=3), (100.0,), "met"),
    ],
)
def test_the_median_of_the_rounds_decides(
    demand: Demand, rounds: tuple[float, ...], verdict: str
) -> None:
    assert Judged(demand, rounds).verdict == verdict


def test_one_of_two_alternatives_is_enough() -> None:
    one, other = (Demand("image-binary", what, 1.0, group="copies") for what in "ab")
    missed, met = Judged(one, (0.9,)), Judged(other, (1.1,))
    assert is_met(missed, [missed, met])
    assert not is_met(missed, [missed, Judged(other, ())])
    alone = Judged(Demand("json-32", "c", 1.0), (0.9,))
    assert not is_met(alone, [alone, met])


def test_who_only_reads_bodies_and_runs_forwards_takes_as_long_as_both_together() -> None:
    # The bare answer takes 4 ms, a forward 1 ms, ours 8 ms: 5 / 8 of what could be.
    over = {BARE: [4 / 8], LIMIT: [1 / 8]}
    lines = judge(
        {
            "requests_per_s": lambda workload, other: over.get(other, []),
            "p50_ms": lambda workload, other: [],
            "p99_over_p50": lambda workload, other: [],
        }
    )
    assert lines[-1].rounds == (5 / 8,)


def test_every_line_asks_for_the_figure_that_it_names() -> None:
    asked: list[tuple[str, str, str]] = []

    def figure(name: str) -> Callable[[str, str], list[float]]:
        def of(workload: str, other: str) -> list[float]:
            asked.append((name, workload, other))
            return [1.0]

        return of

    names = ("requests_per_s", "p50_ms", "p99_over_p50")
    lines = judge({name: figure(name) for name in names})
    *asked, second = asked
    assert second == ("requests_per_s", "image-binary", LIMIT)  # the last line takes two figures
    assert len(lines) == len(asked)
    workloads = {workload.name for workload in WORKLOADS}
    assert {line.demand.workload for line in lines} == workloads - {"batch-binary"}
    for line, (name, workload, _) in zip(lines, asked, strict=True):
        assert workload == (HALF_LOAD if name == "p99_over_p50" else line.demand.workload)
    cached = next(line for line in lines if "Triton" in line.demand.what)
    assert cached.rounds == (4.0,)  # as fast as the bare answer: four times a quarter of it
