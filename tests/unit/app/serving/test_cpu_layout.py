"""CPU layouts: candidates, measurement and choice."""

from __future__ import annotations

import itertools
import os
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app.backends.devices import compute_with
from app.serving import cpu_layout as module
from app.serving.cpu_layout import (
    BUDGET_S,
    PATIENCE,
    ROUNDS,
    Forward,
    Layout,
    best,
    layouts,
    throughput,
)
from models.cores import CoreTime

ANY = 1000
USUAL, OTHER, THIRD = Layout(1, 3), Layout(4, 1), Layout(2, 2)


def all_cores(_: int, __: Layout) -> None:
    """Kept to none."""


@pytest.mark.parametrize(
    ("cores", "wanted"),
    [
        (1, [(1, 1)]),
        (2, [(1, 1), (2, 1), (1, 2)]),
        (3, [(1, 2), (2, 1), (3, 1), (1, 3)]),
        (4, [(1, 3), (3, 1), (4, 1), (2, 2), (1, 4)]),
    ],
)
def test_which_there_are(cores: int, wanted: list[tuple[int, int]]) -> None:
    assert list(layouts(cores, ANY)) == wanted


@given(st.integers(1, 256), st.integers(1, 300))
def test_of_all(cores: int, most: int) -> None:
    found = layouts(cores, most)
    assert found[0] == (1, max(1, cores - 1))
    assert len(set(found)) == len(found) <= 24
    for replicas, threads in found:
        assert 1 <= replicas <= most
        assert threads >= 1
        assert replicas * threads <= cores
        assert replicas == most or replicas * threads >= cores - 1
    assert (1, cores) in found or cores == 1


def test_all_replicas_compute_at_once_with_their_threads() -> None:
    together, threads = threading.Barrier(3), set[int]()

    def forward() -> None:
        threads.add(torch.get_num_threads())
        together.wait(10)  # for two others that are at the same time in it

    before = torch.get_num_threads(), threading.active_count()
    assert throughput(Layout(3, 2), forward, 4, all_cores, loop_s=0.0) > 0
    assert threads == {2}
    assert (torch.get_num_threads(), threading.active_count()) == before


def test_one_that_fails_is_heard_of_and_no_thread_stays() -> None:
    before = threading.active_count()

    def forward() -> None:
        raise ValueError("too large")

    with pytest.raises(ValueError, match="too large"):
        throughput(Layout(2, 1), forward, 4, all_cores)
    assert threading.active_count() == before


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinity")
def test_only_a_replica_stays_on_its_cores() -> None:
    core = min(os.sched_getaffinity(0))
    seen, before = list[set[int]](), os.sched_getaffinity(0)

    def look() -> None:
        compute_with(1, {core})
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [{core}]
    assert os.sched_getaffinity(0) == before


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent of the load on this machine."""
    monkeypatch.setattr(module, "core_time", CoreTime)


class Machine:
    """Says what each layout does, in the order of the rounds."""

    def __init__(self, rates: dict[Layout, list[float]]) -> None:
        self.left = {layout: iter(found) for layout, found in rates.items()}
        self.asked: list[Layout] = []

    def throughput(self, layout: Layout, _: Forward, __: int, *___: object) -> float:
        self.asked.append(layout)
        return next(self.left[layout])


@pytest.mark.parametrize(
    ("usual", "other", "chosen"),
    [
        ([100.0] * ROUNDS, [200.0] * ROUNDS, OTHER),
        ([100.0] * ROUNDS, [114.0] * ROUNDS, USUAL),  # not clearly more
        ([100.0] * ROUNDS, [50.0] * ROUNDS, USUAL),
        ([100.0] * ROUNDS, [200.0, 200.0, 1.0, 1.0, 1.0], USUAL),  # by the median
        ([1.0, 1.0, 100.0, 100.0, 100.0], [100.0] * ROUNDS, USUAL),
    ],
)
def test_the_usual_one_unless_another_does_clearly_more(
    monkeypatch: pytest.MonkeyPatch, usual: list[float], other: list[float], chosen: Layout
) -> None:
    machine = Machine({USUAL: usual, OTHER: other})
    monkeypatch.setattr(module, "throughput", machine.throughput)
    with capture_logs() as logs:
        assert best({USUAL: int, OTHER: int}, 8, all_cores) == chosen
    assert machine.asked == [USUAL, OTHER] * ROUNDS  # in turns
    assert logs[0]["chosen"] == str(chosen)


class TestUnderLoad:
    """Other processes take three tenths of the cores."""

    @pytest.fixture(autouse=True)
    def _busy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seconds = itertools.count()
        monkeypatch.setattr(
            module, "core_time", lambda: CoreTime(busy_s=(now := next(seconds)), own_s=0.7 * now)
        )

    @pytest.mark.parametrize(
        ("last", "chosen"),
        [(200.0, OTHER), (99.0, USUAL)],  # once it did less: it cannot be told
    )
    def test_it_measures_longer_and_another_layout_must_win_every_round(
        self, monkeypatch: pytest.MonkeyPatch, last: float, chosen: Layout
    ) -> None:
        rounds = PATIENCE * ROUNDS
        rates = {USUAL: [100.0] * rounds, OTHER: [200.0] * (rounds - 1) + [last]}
        monkeypatch.setattr(module, "throughput", Machine(rates).throughput)
        with capture_logs() as logs:
            assert best({USUAL: int, OTHER: int}, 8, all_cores) == chosen
        assert [log["event"] for log in logs] == [
            "cpu_layout_measured",
            "cpu_layout_measured_under_load",
        ]
        assert [(log["chosen"], log["others"]) for log in logs] == [(str(chosen), 0.3)] * 2

    def test_until_it_is_quiet_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shares = itertools.chain([0.5] * ROUNDS, itertools.repeat(0.0))
        monkeypatch.setattr(CoreTime, "others_since", lambda *_: next(shares))
        machine = Machine({USUAL: [100.0] * 99})
        monkeypatch.setattr(module, "throughput", machine.throughput)
        with capture_logs() as logs:
            assert best({USUAL: int}, 8, all_cores) == USUAL
        assert len(machine.asked) == ROUNDS + 1
        assert [log["event"] for log in logs] == ["cpu_layout_measured"]


def test_the_best_of_several_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {USUAL: [100.0] * ROUNDS, OTHER: [150.0] * ROUNDS, THIRD: [180.0] * ROUNDS}
    monkeypatch.setattr(module, "throughput", Machine(rates).throughput)
    assert best({USUAL: int, OTHER: int, THIRD: int}, 8, all_cores) == THIRD


def test_no_more_time_is_taken_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unmeasured forms cannot be chosen."""
    now = iter([0.0, 1.0, BUDGET_S - 1, *([BUDGET_S + 1] * 100)])
    machine = Machine({USUAL: [100.0], OTHER: [200.0], THIRD: [900.0]})
    monkeypatch.setattr(module, "throughput", machine.throughput)
    monkeypatch.setattr("app.serving.cpu_layout.time.perf_counter", lambda: next(now))
    assert best({USUAL: int, OTHER: int, THIRD: int}, 8, all_cores) == OTHER
    assert machine.asked == [USUAL, OTHER]


def test_one_that_is_too_slow_for_its_time_does_nothing() -> None:
    gate = threading.Event()
    until = time.perf_counter() + 0.05
    waker = threading.Timer(0.1, gate.set)
    waker.start()
    assert throughput(Layout(2, 1), lambda: gate.wait(10), 4, all_cores, until) == 0.0
    waker.join()


def test_nothing_runs_after_the_stop_event() -> None:
    stop, ran = threading.Event(), list[int]()
    stop.set()
    assert best({USUAL: lambda: ran.append(1)}, 8, all_cores, stop) == USUAL
    assert not ran


def test_a_cut_off_slice_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {USUAL: [100.0] * ROUNDS, OTHER: [200.0] + [0.0] * (ROUNDS - 1)}
    monkeypatch.setattr(module, "throughput", Machine(rates).throughput)
    assert best({USUAL: int, OTHER: int}, 8, all_cores) == OTHER
