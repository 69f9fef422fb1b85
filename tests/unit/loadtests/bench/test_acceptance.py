"""Demands and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from loadtests.bench.acceptance import DEMANDS, judge
from loadtests.bench.measuring import Measured
from loadtests.bench.results import Results, Round
from loadtests.bench.workloads import WORKLOADS
from loadtests.reports import Judged

PINNED = {"server_core": 1}


def measured(per_s: float, p50_ms: float = 5, cpu_us: float = 100) -> Measured:
    return Measured(per_s, p50_ms, 9, cpu_us, 80)


def rounds_of(ours: list[float], key: str, theirs: float) -> list[Round]:
    return [{"torchlane": measured(each), key: measured(theirs)} for each in ours]


def line(
    results: Results, workload: str, what: str, conditions: Mapping[str, Any] = PINNED
) -> Judged:
    [found] = [
        each for each in judge(results, conditions) if (each.of, each.what) == (workload, what)
    ]
    return found


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([], "not measured"),
        ([150, 179, 900], "missed"),
        ([150, 180, 900], "met"),
        ([100, 200, 250], "aim met"),
        ([200, 250], "not judged"),
    ],
)
def test_the_median_of_the_rounds_decides(ours: list[float], verdict: str) -> None:
    found = line({"json-32": rounds_of(ours, "mosec", 100)}, "json-32", "over mosec")
    assert found.verdict == verdict
    assert found.wanted == ">= 1.8, aim 2"
    assert found.doubt == ("2 of 3 rounds" if len(ours) == 2 else "")


@pytest.mark.parametrize(("p50_ms", "verdict"), [(7.1, "missed"), (7.0, "met"), (5.0, "aim met")])
def test_latency_must_be_lower(p50_ms: float, verdict: str) -> None:
    each = {"torchlane": measured(1, p50_ms), "plain_fastapi": measured(1, 10)}
    found = line({"one-connection": [each] * 3}, "one-connection", "p50 over plain FastAPI")
    assert (found.verdict, found.wanted) == (verdict, "<= 0.7, aim 0.5")


def test_decode_and_forward_times_add_up() -> None:
    # The bare answer takes 4 ms, a forward 1 ms, ours 8 ms: 5 / 8 of what could be.
    each = {"torchlane": measured(125), "bare_asgi": measured(250), "limit": measured(1000)}
    found = line({"image-binary": [each] * 3}, "image-binary", "over reading and forward alone")
    assert found.measured.startswith("0.62 ")
    assert found.verdict == "missed"
    del each["limit"]
    without = {"image-binary": [each] * 3}
    assert line(without, "image-binary", found.what).verdict == "not measured"


@pytest.mark.parametrize(("cpu_us", "verdict"), [(100, "met"), (101, "missed")])
def test_cpu_time_must_be_lower(cpu_us: float, verdict: str) -> None:
    each = {"torchlane": measured(9, cpu_us=cpu_us), "bare_asgi": measured(9, cpu_us=40)}
    found = line({"json-32": [each] * 3}, "json-32", "CPU over bare ASGI")
    assert (found.verdict, found.wanted) == (verdict, "<= 2.5")


def test_all_workloads_but_one_have_a_demand() -> None:
    workloads = {workload.name for workload in WORKLOADS}
    assert {demand.workload for demand in DEMANDS} == workloads - {"batch-binary"}
    assert {each.verdict for each in judge({}, PINNED)} == {"not measured"}


def test_nothing_is_judged_without_pinned_cores() -> None:
    results = {"json-32": rounds_of([200] * 3, "mosec", 100)}
    found = line(results, "json-32", "over mosec", {"server_core": None})
    assert (found.verdict, found.doubt) == ("not judged", "cores not pinned")
