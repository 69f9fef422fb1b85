"""Core time used by other processes and a hypervisor, from Linux's counters."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from models.system import cores
from models.system.cores import CoreTime, core_time

BEFORE = CoreTime(stolen_s=1, busy_s=100, idle_s=50, own_s=3)
linux = pytest.mark.skipif(not cores.STAT.exists(), reason="Linux counts, other systems do not")


def later(stolen_s: float = 0, busy_s: float = 0, idle_s: float = 0, own_s: float = 0) -> CoreTime:
    since = (stolen_s, busy_s, idle_s, own_s)
    return CoreTime(*(one + other for one, other in zip(BEFORE, since, strict=True)))


@pytest.mark.parametrize(
    ("after", "stolen", "others"),
    [
        (later(), 0, 0),
        (later(busy_s=2, own_s=2), 0, 0),
        (later(busy_s=4, own_s=3), 0, 0.25),
        (later(busy_s=3, own_s=2, idle_s=1), 0, 0),  # what they took this process did not want
        (later(busy_s=6, own_s=2, idle_s=2), 0, 0.25),
        (later(busy_s=3, own_s=3, stolen_s=1), 0.25, 0),
        (later(busy_s=1, own_s=1.01), 0, 0),  # ticks are coarse
    ],
)
def test_time_shares_since_a_reading(after: CoreTime, stolen: float, others: float) -> None:
    assert after.stolen_since(BEFORE) == pytest.approx(stolen)
    assert after.others_since(BEFORE) == pytest.approx(others)


@linux
def test_only_cores_of_this_process_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = "cpu 1 2 3\ncpu0 9 9 9 9 9 9 9 9 9 9\ncpu1 10 20 30 40 50 60 70 80 0 0\nintr 5\n"
    (tmp_path / "stat").write_text(stat)
    monkeypatch.setattr("models.system.cores.STAT", tmp_path / "stat")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1})
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    found = core_time()
    assert found[:3] == pytest.approx((80 * tick_s, 190 * tick_s, 90 * tick_s))
    assert found.own_s > 0


@pytest.mark.parametrize("text", [None, "cpu0 not a number"])
def test_core_time_is_zero_without_system_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text)
    monkeypatch.setattr("models.system.cores.STAT", tmp_path / "stat")
    assert core_time() == CoreTime()


@linux
def test_real_core_time_never_decreases() -> None:
    before = core_time()
    after = core_time()
    assert after.busy_s >= before.busy_s > 0
    assert 0 <= after.others_since(before) <= 1
