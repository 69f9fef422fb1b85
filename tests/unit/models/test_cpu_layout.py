"""CPU layouts: candidates, measurement and choice."""

from __future__ import annotations

import itertools
import statistics
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models import cpu_layout as module
from models.cpu_layout import (
    BUDGET_S,
    PATIENCE,
    ROUNDS,
    Forward,
    Layout,
    MeasuredLayout,
    best,
    cores_of,
    layouts,
    throughput,
)
from models.system.cores import CoreTime

USUAL, OTHER, THIRD = Layout(1, 3), Layout(4, 1), Layout(2, 2)


def begin(_: int, __: Layout) -> None:
    """Set neither threads nor cores."""


@pytest.mark.parametrize(
    ("cores", "wanted"),
    [
        (1, [(1, 1)]),
        (2, [(1, 1), (2, 1), (1, 2)]),
        (3, [(1, 2), (2, 1), (3, 1), (1, 3)]),
        (4, [(1, 3), (3, 1), (4, 1), (2, 2), (1, 4)]),
    ],
)
def test_candidate_layouts_by_core_count(cores: int, wanted: list[tuple[int, int]]) -> None:
    assert list(layouts(cores)) == wanted


@given(st.integers(1, 256))
def test_every_layout_fits_the_cores(cores: int) -> None:
    found = layouts(cores)
    assert found[0] == (1, max(1, cores - 1))
    assert len(set(found)) == len(found) <= 24
    for replicas, threads in found:
        assert replicas >= 1
        assert threads >= 1
        assert replicas * threads <= cores
        assert replicas * threads >= cores - 1
    assert (1, cores) in found or cores == 1


def test_replicas_compute_in_parallel_threads() -> None:
    together, met, began = threading.Barrier(3), threading.Event(), dict[str, int]()

    def begin(replica: int, layout: Layout) -> None:
        assert layout == (3, 2)
        began[threading.current_thread().name] = replica

    def forward() -> None:
        assert threading.current_thread().name in began
        if not met.is_set():
            together.wait(60)  # for two others that are at the same time in it
            met.set()

    before = threading.active_count()
    assert throughput(Layout(3, 2), forward, 4, begin, loop_s=0.0) > 0
    assert sorted(began.values()) == [0, 1, 2]
    assert threading.active_count() == before


def test_failed_forward_is_raised_and_threads_end() -> None:
    before = threading.active_count()

    def forward() -> None:
        raise ValueError("too large")

    with pytest.raises(ValueError, match="too large"):
        throughput(Layout(2, 1), forward, 4, begin)
    assert threading.active_count() == before


NODES = (frozenset({0, 1}), frozenset({2, 3}))
UNEVEN = (frozenset({0, 1, 2, 3, 4, 5}), frozenset({8}))


@pytest.mark.parametrize(
    ("nodes", "layout", "wanted"),
    [
        (NODES, Layout(4, 1), [NODES[0], NODES[1], NODES[0], NODES[1]]),
        (NODES, Layout(2, 2), [*NODES]),
        (NODES, Layout(1, 2), [None]),  # alone it may have all memory near
        (NODES, Layout(2, 3), [None, None]),  # does not fit
        (NODES, Layout(3, 2), [None, None, None]),  # two of them would share a node
        (UNEVEN, Layout(6, 1), [UNEVEN[0]] * 6),  # the small one is as good when it is its turn
        (UNEVEN, Layout(2, 3), [UNEVEN[0], UNEVEN[0]]),
        (NODES[:1], Layout(2, 1), [None, None]),
        ((), Layout(2, 1), [None, None]),
    ],
)
def test_replicas_that_fit_stay_on_one_node(
    monkeypatch: pytest.MonkeyPatch,
    nodes: tuple[frozenset[int], ...],
    layout: Layout,
    wanted: list[frozenset[int] | None],
) -> None:
    monkeypatch.setattr(module, "numa_nodes", lambda: nodes)
    assert [cores_of(replica, layout) for replica in range(layout.replicas)] == wanted


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
def test_only_a_clearly_better_layout_replaces_the_usual(
    monkeypatch: pytest.MonkeyPatch, usual: list[float], other: list[float], chosen: Layout
) -> None:
    machine = Machine({USUAL: usual, OTHER: other})
    monkeypatch.setattr(module, "throughput", machine.throughput)
    found, others = best({USUAL: int, OTHER: int}, 8, begin)
    assert machine.asked == [USUAL, OTHER] * ROUNDS  # in turns
    assert found == MeasuredLayout(
        chosen=chosen,
        layouts=(USUAL, OTHER),
        items_per_s=(statistics.median(usual), statistics.median(other)),
        batch_size=8,
    )
    assert others == 0


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
    def test_other_layout_must_win_every_longer_round(
        self, monkeypatch: pytest.MonkeyPatch, last: float, chosen: Layout
    ) -> None:
        rounds = PATIENCE * ROUNDS
        rates = {USUAL: [100.0] * rounds, OTHER: [200.0] * (rounds - 1) + [last]}
        monkeypatch.setattr(module, "throughput", Machine(rates).throughput)
        found, others = best({USUAL: int, OTHER: int}, 8, begin)
        assert found.chosen == chosen
        assert others == pytest.approx(0.3)

    def test_measuring_ends_once_the_machine_is_quiet(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shares = itertools.chain([0.5] * ROUNDS, itertools.repeat(0.0))
        monkeypatch.setattr(CoreTime, "others_since", lambda *_: next(shares))
        machine = Machine({USUAL: [100.0] * 99})
        monkeypatch.setattr(module, "throughput", machine.throughput)
        _, others = best({USUAL: int}, 8, begin)
        assert len(machine.asked) == ROUNDS + 1
        assert others == 0


def test_measuring_stays_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unmeasured forms cannot be chosen."""
    now = iter([0.0, 1.0, BUDGET_S - 1, *([BUDGET_S + 1] * 100)])
    machine = Machine({USUAL: [100.0], OTHER: [200.0], THIRD: [900.0]})
    monkeypatch.setattr(module, "throughput", machine.throughput)
    monkeypatch.setattr("models.cpu_layout.time.perf_counter", lambda: next(now))
    assert best({USUAL: int, OTHER: int, THIRD: int}, 8, begin)[0].chosen == OTHER
    assert machine.asked == [USUAL, OTHER]


def test_layout_too_slow_for_its_slice_scores_zero() -> None:
    gate = threading.Event()
    until = time.perf_counter() + 0.05
    waker = threading.Timer(0.1, gate.set)
    waker.start()
    assert throughput(Layout(2, 1), lambda: gate.wait(60), 4, begin, until) == 0.0
    waker.join()


def test_nothing_runs_after_the_stop_event() -> None:
    stop, ran = threading.Event(), list[int]()
    stop.set()
    assert best({USUAL: lambda: ran.append(1)}, 8, begin, stop)[0].chosen == USUAL
    assert not ran


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"chosen": THIRD}, "must be among them"), ({"items_per_s": (1.0,)}, "needs its rate")],
)
def test_contradictory_record_is_rejected(change: dict[str, object], problem: str) -> None:
    good = MeasuredLayout(
        chosen=OTHER, layouts=(USUAL, OTHER), items_per_s=(1.0, 2.0), batch_size=8
    )
    assert MeasuredLayout.model_validate_json(good.model_dump_json()) == good
    with pytest.raises(ValidationError, match=problem):
        MeasuredLayout.model_validate(good.model_dump() | change)


def test_incomplete_slice_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {USUAL: [100.0] * ROUNDS, OTHER: [200.0] + [0.0] * (ROUNDS - 1)}
    monkeypatch.setattr(module, "throughput", Machine(rates).throughput)
    assert best({USUAL: int, OTHER: int}, 8, begin)[0].chosen == OTHER
