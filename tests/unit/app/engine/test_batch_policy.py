"""The policy decides from numbers alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.batch_policy import BatchLimits, Decision, decide

GREEDY = BatchLimits(max_batch_size=8, batch_wait_s=0.0)
PATIENT = BatchLimits(max_batch_size=8, batch_wait_s=1.0)


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
    assert decide(waiting, oldest_s, free, limits) == wanted


@given(st.integers(1, 200), st.integers(1, 8), st.integers(1, 64))
def test_idle_replicas_share_the_queue_evenly(waiting: int, free: int, most: int) -> None:
    left, sizes = waiting, []
    for replicas in range(free, 0, -1):
        sizes.append(decide(left, 0.0, replicas, BatchLimits(most, 0.0)).size)
        left -= sizes[-1]
    assert left == max(0, waiting - free * most)
    assert max(sizes) - min(sizes) <= 1
