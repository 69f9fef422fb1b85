"""Tails at one rate for all: what is offered to whom, what counts, and what is demanded."""

from __future__ import annotations

import argparse
import io
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from rich.console import Console

from loadtests.bench import launch, tail
from loadtests.bench.answers import CheckError
from loadtests.bench.launch import Contestant, Serving
from loadtests.bench.measuring import Bench, Measured
from loadtests.bench.servers import Cores, ServerSpec
from loadtests.bench.tail import LEAD_S, Tail, judge, measure, print_tails
from loadtests.bench.workloads import JSON_32, Workload
from loadtests.openloop.sender import Kind, Outcomes, TrialPlan

SERVING = Serving(Path("/repository/digits/1"), Cores(None, None))
GIVEN = argparse.Namespace(rounds=2, seconds=1.0)


def outcomes(latency_ms: list[float], kind: Kind = Kind.RIGHT, reason: str = "") -> Outcomes:
    """The first of them was due during the lead."""
    n = len(latency_ms)
    due_s = np.array([0.0, *(LEAD_S + at for at in range(n - 1))])
    done_s = due_s + np.array(latency_ms) / 1000
    kinds = np.full(n, kind, np.int8)
    return Outcomes(due_s, done_s, np.zeros(n), kinds, np.full(n, np.nan), [reason] * n)


def tail_of(server: str, *turns: list[float], share: float = 0.4) -> Tail:
    made = Tail(share, server, 100.0)
    for each in turns:
        made.add(outcomes([0.0, *each]), 50.0)
    return made


def test_latencies_start_when_due_and_skip_warmup() -> None:
    made = Tail(0.2, "mosec", 100.0)
    made.add(outcomes([900.0, *range(1, 101)]), 50.0)
    told = made.told()
    assert (told["p50_ms"], told["p99_ms"], told["p99_9_ms"]) == pytest.approx((50, 99, 100))
    assert made.unserved == 0
    made.add(outcomes([900.0, *range(1, 101)], Kind.REFUSED, "429: full"), 50.0)
    assert made.unserved == 0.5
    assert made.reasons == {"429: full": 100}
    with pytest.raises(CheckError, match="mosec: a wrong answer: other scores"):
        made.add(outcomes([1.0, 1.0], Kind.WRONG, "other scores"), 50.0)


@pytest.mark.parametrize(
    ("ours", "verdicts"),
    [
        ([[4.0], [9.0], [4.0]], ["met", "met"]),
        ([[6.0], [6.0], [1.0]], ["met", "missed"]),
        ([[9.0], [9.0], [1.0]], ["missed", "missed"]),
    ],
)
def test_median_is_compared_with_mosecs_same_rounds(
    ours: list[list[float]], verdicts: list[str]
) -> None:
    found = [tail_of("torchlane", *ours), tail_of("mosec", [8.0], [8.0], [8.0])]
    assert [each.verdict for each in judge(found, stalled=0)] == verdicts


def test_miss_on_a_stalled_machine_is_not_judged() -> None:
    [line] = judge([tail_of("torchlane", [6.0])], stalled=0.2)
    assert (line.verdict, line.measured) == ("not judged", "6.0 ms")
    assert "was stalled for 20.0%" in line.doubt


def test_low_p99_with_refusals_still_misses() -> None:
    ours = tail_of("torchlane", [1.0])
    ours.add(outcomes([0.0, 1.0], Kind.REFUSED, "429"), 50.0)
    lines = judge([ours, tail_of("mosec", [8.0], [8.0])], stalled=0)
    assert [(each.of[:3], each.what, each.verdict) for each in lines[:2]] == [
        ("40%", "p99 over mosec's", "missed"),
        ("40%", "p99", "missed"),
    ]


def test_rates_never_offered_count_as_missed() -> None:
    ours = tail_of("torchlane", [1.0])
    ours.add(outcomes([0.0, *[1.0] * 9], Kind.REFUSED, "429"), 50.0)
    lines = judge([ours, tail_of("mosec", [8.0], [8.0], share=0.8)], stalled=0.5)
    assert [(each.of, each.verdict) for each in lines[1:]] == [
        ("60% of mosec's", "missed"),
        ("80% of mosec's", "missed"),
    ]


class FakeFleet:
    def __init__(self) -> None:
        self.running: list[str] = []

    def start(self, spec: ServerSpec) -> None:
        self.running.append(spec.name)

    def stop(self, spec: ServerSpec) -> None:
        self.running.remove(spec.name)


@dataclass
class FakeBench:
    """Mosec does 1,000/s; plain FastAPI refuses all above 300/s."""

    fleet: FakeFleet = field(default_factory=FakeFleet)
    serving: Serving = SERVING
    asked: list[tuple[str, float, int]] = field(default_factory=list)

    def measured(self, contestant: Contestant, workload: Workload, seed: int) -> Measured:
        assert contestant.key == "mosec"
        return Measured(1000, 2, 5, 100, 80)

    def workers(self, contestant: Contestant, workload: Workload) -> int:
        return 2

    def offered(
        self, contestant: Contestant, workload: Workload, plan: TrialPlan
    ) -> tuple[Outcomes, float]:
        self.asked.append((contestant.key, plan.rate_per_s, plan.seed))
        if contestant.key == "plain_fastapi" and plan.rate_per_s > 300:
            return outcomes([1.0, 1.0], Kind.REFUSED, "no connection"), 90.0
        return outcomes([1.0, 2.0]), 50.0


def test_servers_get_equal_rates_within_their_capacity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "why_not", lambda _: None)
    monkeypatch.setattr(tail, "share_stalled", lambda *_: 0.001)
    bench, found, stalled = FakeBench(), list[Tail](), list[float]()
    measure(cast(Bench, bench), JSON_32, GIVEN, found, stalled, print)
    rates = {server: [rate for key, rate, _ in bench.asked if key == server] for server in KEYS}
    assert rates["torchlane"] == rates["mosec"] == [200, 200, 200, 400, 400, 600, 600, 800, 800]
    assert rates["plain_fastapi"] == [200, 200, 200, 400, 400]
    assert {seed for key, _, seed in bench.asked if key == "mosec"} == set(range(9))
    assert sum(len(each.latency_ms) for each in found if each.server == "mosec") == 8
    assert bench.fleet.running == ["Torchlane", "mosec"]
    assert len(stalled) == 8
    out = io.StringIO()
    print_tails(Console(file=out, width=125), found, "a title")
    for said in ("a title", "plain FastAPI at 40%: 2 times no connection", "100.00%", "800"):
        assert said in out.getvalue()


def test_worker_counts_are_reported_on_shared_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "why_not", lambda _: None)
    monkeypatch.setattr(launch, "SHARED_WORKERS", (1,))
    monkeypatch.setattr(tail, "share_stalled", lambda *_: 0.001)
    said: list[str] = []
    measure(cast(Bench, FakeBench()), replace(JSON_32, shared=True), GIVEN, [], [], said.append)
    assert said == ["workers of Torchlane: 2; of the others: 1"]


def test_missing_mosec_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "why_not", {"mosec": "it is not there"}.get)
    with pytest.raises(CheckError, match="but it is not there"):
        measure(cast(Bench, FakeBench()), JSON_32, GIVEN, [], [], print)


KEYS = ("torchlane", "mosec", "plain_fastapi")
