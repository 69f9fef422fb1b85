"""When replicas are free, from the batches that they were handed and that have ended."""

from __future__ import annotations

import pytest

from app.engine.batch_cost import BatchCost
from app.engine.batch_policy import BatchLimits
from app.engine.clock import ManualClock
from app.engine.in_flight import Batch
from app.engine.queue import Load, ModelQueue, Ticket, TicketQueue
from app.engine.replica import Replica
from app.engine.timeline import Timeline
from app.engine.track import OVERDUE_S
from app.metrics import Metrics
from app.types import Device, ModelId, Serving
from tests.unit.app.engine.harness import CONTRACT, item

MODEL = ModelId("m", 1)
ONE_ITEM = [Load(1)]
BATCH_S = 0.010  # of one item each
SERVING = Serving(())


class Table:
    """A timeline of replicas that run what a test says."""

    def __init__(self, replicas: int = 1) -> None:
        self.clock = ManualClock()
        self.replicas = [Replica(f"fake#{at}", Device("cpu")) for at in range(replicas)]
        self.timeline = Timeline(self.replicas, self.clock)
        costs = {each.name: BatchCost(1, {0: {1: BATCH_S}}) for each in self.replicas}
        metrics = Metrics().model(MODEL)
        self.queue = ModelQueue(
            MODEL, TicketQueue(100, 10**9), BatchLimits(1, 0.0), CONTRACT, metrics, costs
        )
        self.timeline.add(self.queue)
        for each in self.replicas:
            each.models[MODEL] = SERVING

    def begin(self, at: int = 0, *, expected_s: float = BATCH_S) -> Batch:
        now, replica = self.clock.now(), self.replicas[at]
        ticket = Ticket(b"", item(0), now, 9e9, 9e9)
        prefetched, replica.busy = replica.busy, True
        made = Batch(self.queue, replica, [ticket], now, expected_s, prefetched, True, SERVING)
        self.timeline.begin(made)
        return made

    def wait(self, items: int) -> None:
        for number in range(items):
            key, now = b"%d" % number, self.clock.now()
            self.queue.tickets.submit(Ticket(key, item(number), now, 9e9, 9e9))

    def clear_s(self) -> float:
        return self.timeline.clear_s(self.queue, 10.0)

    def least_s(self) -> float:
        """The shortest time within which one more item would be answered."""
        low_s, high_s, deadline = 0.0, 10.0, self.clock.now() + 10.0
        while high_s - low_s > 1e-6:
            middle_s = (low_s + high_s) / 2
            if self.timeline.can_meet(self.queue, ONE_ITEM, deadline, middle_s, self.clock.now()):
                high_s = middle_s
            else:
                low_s = middle_s
        return high_s


def test_overdue_replica_is_ignored_in_predictions() -> None:
    t = Table(replicas=2)
    t.begin(0)
    t.begin(1)
    t.wait(4)
    assert t.clear_s() == pytest.approx(0.030)
    t.clock.advance(0.5)  # both are late, and may be done at any moment
    assert t.clear_s() == pytest.approx(0.020)
    t.clock.advance(0.5 + OVERDUE_S)  # both are overdue: as if they could be done at any moment
    assert t.clear_s() == pytest.approx(0.020)


def test_hanging_replica_leaves_work_to_the_other() -> None:
    t = Table(replicas=2)
    t.begin(0)
    t.clock.advance(0.05 + OVERDUE_S)
    t.begin(1)
    t.wait(4)
    assert t.clear_s() == pytest.approx(0.050)
    assert t.timeline.busy(t.queue) == [t.replicas[1]]


def test_prepared_batch_begins_when_the_previous_ends() -> None:
    t = Table()
    first, second = t.begin(), t.begin()
    assert t.timeline.left_s(t.replicas[0]) == pytest.approx(2 * BATCH_S)
    t.clock.advance(1.0)  # the first takes longer than expected
    took = t.timeline.end(first, 1.0)
    assert took.began == first.started
    assert t.timeline.left_s(t.replicas[0]) == pytest.approx(BATCH_S)
    t.clock.advance(BATCH_S)
    took = t.timeline.end(second, BATCH_S)
    assert took.began == pytest.approx(first.started + 1.0)
    assert took.overhead_s == pytest.approx(0)
    assert t.timeline.left_s(t.replicas[0]) == 0


def test_overhead_counts_from_the_possible_start() -> None:
    t = Table()
    ticket = Ticket(b"", item(0), t.clock.now(), 9e9, 9e9)
    t.clock.advance(0.003)  # the event loop was busy
    batch = Batch(t.queue, t.replicas[0], [ticket], t.clock.now(), BATCH_S, False, True, SERVING)
    t.timeline.begin(batch)
    t.clock.advance(0.012)
    assert t.timeline.end(batch, 0.010).overhead_s == pytest.approx(0.005)


def test_idle_replica_with_empty_queue_never_waits() -> None:
    t = Table(replicas=2)
    t.begin(0, expected_s=1000.0)
    now = t.clock.now()
    assert t.timeline.can_meet(t.queue, ONE_ITEM, now + 10.0, 0.0, now)
    assert t.timeline.wait_s(t.queue) == 0
    t.begin(1)
    assert t.least_s() == pytest.approx(2 * BATCH_S, abs=1e-5)
    assert t.timeline.wait_s(t.queue) == pytest.approx(BATCH_S)  # when the first is free


def test_two_running_batches_scatter_more_than_one() -> None:
    t = Table()
    for index in range(200):
        t.queue.costs["fake#0"].took(1, BATCH_S * (1 + 0.1 * (-1) ** index))
    t.begin()
    one = t.least_s() - 2 * BATCH_S
    t.begin()
    two = t.least_s() - 3 * BATCH_S
    assert 1.1 * one < two < 1.4 * one
