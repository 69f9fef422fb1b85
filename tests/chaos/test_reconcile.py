"""A fault that does not show in what the server has counted is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.checker import Told
from tests.chaos.journal import Ledger
from tests.chaos.reconcile import (
    reconcile,
    reconcile_after_kill,
    reconcile_handler,
    reconcile_versions,
)
from tests.chaos.relayed import Acts
from tests.chaos.scrape import Scrape
from tests.chaos.truth import HANDLERS, MODELS

TRUE = {
    'torchlane_requests_total{route="/predict",status="200",code="ok"}': 2,
    'torchlane_requests_total{route="/predict",status="500",code="backend_failed"}': 1,
    'torchlane_items_total{model="steady",version="1",outcome="ok"}': 3,
    'torchlane_items_total{model="steady",version="1",outcome="backend_failed"}': 1,
    'torchlane_cache_lookups_total{model="steady",version="1",result="miss"}': 4,
    'torchlane_batch_size_count{model="steady",version="1"}': 2,
    'torchlane_batch_size_sum{model="steady",version="1"}': 6,
    'torchlane_batch_splits_total{model="steady",version="1"}': 1,
    'torchlane_out_of_memory_total{model="steady",version="1"}': 1,
    'torchlane_replica_faults_total{replica="cpu#0",device="cpu",kind="error"}': 1,
    'torchlane_replica_faults_total{replica="cpu#0",device="cpu",kind="hung"}': 0,
    'torchlane_items_computed_total{model="steady",version="1"}': 4,
    'torchlane_items_moved_total{model="steady",version="1"}': 2,
}


def told() -> Told:
    known = Told()
    known.requests.update({(200, "ok"): 2, (500, "backend_failed"): 1})
    known.items.update({("steady", "ok"): 3, ("steady", "backend_failed"): 1})
    known.failed["steady"] = {22}
    return known


def ledgers() -> dict[str, Ledger]:
    done = Ledger(batches=2, items=6, splits=1, struck=2, out_of_memory=1, failed_alone={22})
    done.faults["fells"] = 1
    return {"steady": done}


def scraped(counted: dict[str, int]) -> Scrape:
    lines = [
        f"# TYPE {series.partition('{')[0]} untyped\n{series} {value}"
        for series, value in counted.items()
    ]
    return Scrape("\n".join(lines) + "\n")


def test_correct_counts_have_no_problems() -> None:
    assert reconcile(scraped(TRUE), told(), ledgers()) == []


@pytest.mark.parametrize("series", TRUE)
@pytest.mark.parametrize("by", [-1, 1])
def test_a_count_off_by_one_is_detected(series: str, by: int) -> None:
    assert reconcile(scraped({**TRUE, series: TRUE[series] + by}), told(), ledgers()) != []


def test_unread_answers_may_be_counted_or_not() -> None:
    known = told()
    known.unknown_requests, known.unknown_items["steady"] = 1, 2
    more = {
        'torchlane_requests_total{route="/predict",status="200",code="ok"}': 3,
        'torchlane_items_total{model="steady",version="1",outcome="ok"}': 5,
        'torchlane_cache_lookups_total{model="steady",version="1",result="miss"}': 6,
    }
    assert reconcile(scraped({**TRUE, **more}), known, ledgers()) == []
    assert reconcile(scraped({**TRUE, **more}), told(), ledgers()) != []


def test_only_a_stream_fails_with_200() -> None:
    known = told()
    known.unknown_requests = 1
    series = (
        'torchlane_requests_total{route="/models/{name}/predict",status="200",code="abandoned"}'
    )
    (problem,) = reconcile(scraped({**TRUE, series: 1}), known, ledgers())
    assert "abandoned" in problem
    known.unknown_streams = 1
    assert reconcile(scraped({**TRUE, series: 1}), known, ledgers()) == []


def test_streams_that_nobody_reads_must_be_left() -> None:
    known = told()
    known.unknown_requests = known.unknown_streams = known.unread_streams = 20
    for code in ("abandoned", "ok"):
        series = f'torchlane_requests_total{{route="/r",status="200",code="{code}"}}'
        found = scraped({**TRUE, series: TRUE.get(series, 0) + 20})
        assert len(reconcile(found, known, ledgers())) == (code == "ok")


def test_items_of_a_failed_replica_must_have_moved() -> None:
    known, done = told(), ledgers()
    known.unknown_items["steady"] = done["steady"].struck = 10
    none = {
        'torchlane_batch_size_sum{model="steady",version="1"}': 14,
        'torchlane_items_moved_total{model="steady",version="1"}': 0,
    }
    done["steady"].items = 14
    (problem,) = reconcile(scraped({**TRUE, **none}), known, done)
    assert "moved" in problem


def test_a_reported_failure_without_a_fault_is_detected() -> None:
    known = told()
    known.failed["steady"] = {22, 23}
    (problem,) = reconcile(scraped(TRUE), known, ledgers())
    assert "23" in problem


def test_version_switches_and_failures_must_be_counted() -> None:
    loaded = 'torchlane_model_loads_total{model="steady",version="1",result="loaded"}'
    failed = 'torchlane_model_loads_total{model="steady",version="2",result="failed"}'
    most = len(MODELS) + len(HANDLERS) + 2
    assert reconcile_versions(scraped({loaded: most, failed: 3}), switches=2, refused=3) == []
    few = scraped({loaded: most - 1, failed: 2})
    assert len(reconcile_versions(few, switches=2, refused=3)) == 2


def test_ends_of_a_handlers_processes_must_be_counted(tmp_path: Path) -> None:
    journal = tmp_path / "relayed"
    known = {"handler": "relay", "at": 1.0, "id": "a", "number": 20}
    lines = [{**known, "pid": pid} for pid in (7, 8)]
    acts = zip(lines, ("EXITS", "LOOPS"), strict=True)
    journal.write_text("".join(f"{json.dumps({**line, 'what': what})}\n" for line, what in acts))
    series = 'torchlane_handler_restarts_total{handler="relay",cause="%s"}'
    right = {series % "died": 1, series % "stuck": 1}
    done = Acts(journal)
    assert reconcile_handler(scraped(right), Told(), done, replaced=0) == []
    for cause in ("died", "stuck"):
        for wrong in (0, 2):
            found = scraped({**right, series % cause: wrong})
            assert len(reconcile_handler(found, Told(), done, replaced=0)) == 1
    assert reconcile_handler(scraped({}), Told(), done, replaced=2) == []


def test_counts_after_a_kill_may_only_be_lower() -> None:
    assert reconcile_after_kill(scraped({}), told()) == []
    series = 'torchlane_requests_total{route="/predict",status="200",code="ok"}'
    assert reconcile_after_kill(scraped({series: 3}), told()) != []
