"""A short run of chaos, always the same; `make chaos` runs for minutes, each time another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plan import ChaosPlan
from tests.chaos.report import failures, table
from tests.chaos.rounds import run_round
from tests.chaos.truth import HANDLERS

SEED = 20_261_122
ALWAYS = {"poison", "rows lost", "rows gained", "out of memory", "nan", "slow"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(ChaosPlan(SEED, requests=1200), id="one process"),
        pytest.param(
            ChaosPlan(SEED + 1, 600, workers=2, cache_bytes=0, hangs=False, switches=False),
            id="one is killed",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_no_answer_is_lost_duplicated_wrong_or_misdelivered(
    plan: ChaosPlan, tmp_path: Path
) -> None:
    outcome = run_round(plan, tmp_path)
    told = f"{table([(0, outcome)])}\n{failures(plan.seed, [(0, outcome)])}"
    assert outcome.is_good, told
    assert outcome.checker.counts.total() >= plan.requests, told
    assert set(outcome.faults) >= ALWAYS
    assert outcome.checker.kinds["flood_ahead"] > 0
    assert outcome.restarts or plan.workers > 1  # a killed worker takes its counters with it
    if plan.workers > 1:
        assert outcome.faults["worker killed"] == 1
    else:
        for handler in HANDLERS:
            assert outcome.checker.handler.codes[handler, "ok"] > 0
            assert outcome.checker.handler.codes[handler, "handler_failed"] > 0
        assert outcome.faults["fells"] + outcome.faults["breaks"] > 0
        assert outcome.faults["hangs"] > 0
        assert outcome.figures["switches"] > 0
        assert outcome.figures["refused"] > 0
        assert outcome.checker.kinds["reads_late"] > 0
        assert outcome.checker.kinds["never_reads"] > 0
        assert outcome.figures["unread_mib"] > 0
