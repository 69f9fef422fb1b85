"""The policy decides from numbers alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.batch_policy import Arrivals, BatchLimits, Decision, decide

GREEDY = BatchLimits(max_batch_size=8, batch_wait_s=0.0)
PATIENT = BatchLimits(max_batch_size=8, batch_wait_s=1.0)
GATHERING = BatchLimits(max_batch_size=8, batch_wait_s=0.0, gather_s=0.5)
BOTH = BatchLimits(max_batch_size=8, batch_wait_s=1.0, gather_s=0.5)
NEXT_TURN = Decision(0, again_in_s=0.0)


def one_of(replicas: int) -> float:
    """The share of one of `replicas` equal ones."""
    return 1 / replicas if replicas else 0.0


@pytest.mark.parametrize(
    ("waiting", "oldest_s", "free", "limits", "wanted"),
    [
        (0, 0.0, 1, GREEDY, Decision(0)),
        (5, 9.0, 0, GREEDY, Decision(0)),
        (1, 0.0, 1, GREEDY, Decision(1)),
        (5, 0.0, 1, GREEDY, Decision(5)),
        (50, 0.0, 1, GREEDY, Decision(8)),
        (5, 0.0, 2, GREEDY, Decision(3)),  # shared between idle replicas, rounded up
        (50, 0.0, 2, GREEDY, Decision(8)),
        (1, 0.25, 1, PATIENT, Decision(0, again_in_s=0.75)),
        (1, 1.0, 1, PATIENT, Decision(1)),
        (8, 0.0, 1, PATIENT, Decision(8)),  # full: nothing to wait for
    ],
)
def test_decide(
    waiting: int, oldest_s: float, free: int, limits: BatchLimits, wanted: Decision
) -> None:
    assert decide(waiting, oldest_s, one_of(free), limits) == wanted


@pytest.mark.parametrize(
    ("waiting", "oldest_s", "free", "limits", "arrivals", "wanted"),
    [
        (3, 0.0, 1, GATHERING, Arrivals(3, 0.0), NEXT_TURN),
        (3, 0.4, 1, GATHERING, Arrivals(1, 0.4), NEXT_TURN),
        (3, 0.1, 1, GATHERING, Arrivals(0, 0.1), Decision(3)),  # a turn brought nothing
        (3, 0.5, 1, GATHERING, Arrivals(3, 0.5), Decision(3)),  # it has grown long enough
        (3, 9.0, 1, GATHERING, Arrivals(3, 0.0), NEXT_TURN),  # counts from its own beginning
        (8, 0.0, 1, GATHERING, Arrivals(8, 0.0), Decision(8)),  # full
        (9, 0.0, 1, GATHERING, Arrivals(1, 0.0), Decision(8)),
        (3, 0.0, 2, GATHERING, Arrivals(3, 0.0), NEXT_TURN),
        (3, 0.0, 2, GATHERING, Arrivals(0, 0.0), Decision(2)),
        (3, 0.0, 0, GATHERING, Arrivals(3, 0.0), Decision(0)),  # no replica
        (0, 0.0, 1, GATHERING, Arrivals(3, 0.0), Decision(0)),  # of another shape
        (3, 0.0, 1, GREEDY, Arrivals(3, 0.0), Decision(3)),  # gather_s is 0: as before
        (3, 0.25, 1, BOTH, Arrivals(3, 0.0), Decision(0, again_in_s=0.75)),
        (3, 1.0, 1, BOTH, Arrivals(1, 0.25), NEXT_TURN),
        (3, 1.0, 1, BOTH, Arrivals(1, 0.5), Decision(3)),
    ],
)
def test_decision_waits_for_requests_being_read(
    waiting: int,
    oldest_s: float,
    free: int,
    limits: BatchLimits,
    arrivals: Arrivals,
    wanted: Decision,
) -> None:
    assert decide(waiting, oldest_s, one_of(free), limits, arrivals) == wanted


SECONDS = st.floats(0, 10)


@given(
    waiting=st.integers(0, 100),
    oldest_s=SECONDS,
    free=st.integers(0, 8),
    limits=st.builds(BatchLimits, st.integers(1, 64), SECONDS, SECONDS),
    arrivals=st.builds(Arrivals, st.integers(0, 100), SECONDS),
)
def test_every_decision_is_valid(
    waiting: int, oldest_s: float, free: int, limits: BatchLimits, arrivals: Arrivals
) -> None:
    made = decide(waiting, oldest_s, one_of(free), limits, arrivals)
    assert 0 <= made.size <= min(waiting, limits.max_batch_size)
    if waiting == 0 or free == 0:
        assert made == Decision(0)
    elif made.size == 0:  # work and a replica: only a wait that was configured holds it back
        assert made.again_in_s is not None
        assert 0 <= made.again_in_s <= limits.batch_wait_s
        assert waiting < limits.max_batch_size
        waits = oldest_s < limits.batch_wait_s
        assert waits or (arrivals.items > 0 and arrivals.gathered_s < limits.gather_s)
    else:
        assert made.again_in_s is None
        assert made.size * free >= min(waiting, limits.max_batch_size)


@given(
    st.tuples(st.integers(1, 100), st.integers(0, 100)),
    st.tuples(SECONDS, SECONDS),
    st.integers(1, 8),
    st.builds(BatchLimits, st.integers(1, 64), SECONDS, SECONDS),
    st.builds(Arrivals, st.integers(0, 100), SECONDS),
)
def test_more_work_or_time_never_delays_a_batch(
    work: tuple[int, int],
    time: tuple[float, float],
    free: int,
    limits: BatchLimits,
    arrivals: Arrivals,
) -> None:
    (waiting, more), (oldest_s, later_s) = work, time
    before = decide(waiting, oldest_s, one_of(free), limits, arrivals)
    assert decide(waiting + more, oldest_s, one_of(free), limits, arrivals).size >= before.size
    assert decide(waiting, oldest_s + later_s, one_of(free), limits, arrivals).size >= before.size
    older = Arrivals(arrivals.items, arrivals.gathered_s + later_s)
    assert decide(waiting, oldest_s, one_of(free), limits, older).size >= before.size


@given(st.integers(1, 200), st.integers(1, 8), st.integers(1, 64))
def test_idle_replicas_share_the_queue_evenly(waiting: int, free: int, most: int) -> None:
    left, sizes = waiting, []
    for replicas in range(free, 0, -1):
        sizes.append(decide(left, 0.0, one_of(replicas), BatchLimits(most, 0.0)).size)
        left -= sizes[-1]
    assert left == max(0, waiting - free * most)
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 63), SECONDS, st.builds(BatchLimits, st.just(64), SECONDS, SECONDS), SECONDS)
def test_configured_wait_ends_at_the_next_check(
    waiting: int, oldest_s: float, limits: BatchLimits, gathered_s: float
) -> None:
    made = decide(waiting, oldest_s, 1, limits, Arrivals(1, gathered_s))
    if made.again_in_s:  # 0: the next turn of the loop
        after_s = oldest_s + made.again_in_s + 1e-9
        assert decide(waiting, after_s, 1, limits, Arrivals(0, 0.0)).size == waiting


@given(
    st.integers(1, 200), st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(1, 64)
)
def test_queued_items_are_shared_by_speed(waiting: int, speeds: list[float], most: int) -> None:
    left, slower = waiting, sorted(speeds)
    ends: list[float] = []
    while slower and left:
        size = decide(left, 0.0, slower[-1] / sum(slower), BatchLimits(most, 0.0)).size
        ends.append(size / slower.pop())
        left -= size
    assert left == max(0, waiting - len(speeds) * most)
    if waiting <= most:  # at most one batch more than if batches could be divided
        assert max(ends) <= (waiting + len(speeds)) / sum(speeds) + 1 / min(speeds)
