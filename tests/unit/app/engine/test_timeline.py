"""When replicas are free, from the batches that they were handed and that have ended."""

from __future__ import annotations

import pytest

from app.engine.batch_cost import BatchCost
from app.engine.batch_policy import BatchLimits
from app.engine.clock import ManualClock
from app.engine.pool import OVERDUE_S, Batch
from app.engine.queue import Load, ModelQueue, Ticket, TicketQueue
from app.engine.replica import Replica
from app.engine.timeline import Timeline, Work, completion_s, own_share_s
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
        costs = {"cpu": BatchCost(1, {0: {1: BATCH_S}})}
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
        cost = self.queue.costs["cpu"]
        made = Batch(
            self.queue, replica, cost, [ticket], 0, now, expected_s, prefetched, True, SERVING
        )
        self.timeline.begin(made)
        return made

    def wait(self, items: int) -> None:
        for number in range(items):
            key, now = b"%d" % number, self.clock.now()
            self.queue.tickets.submit(Ticket(key, item(number), now, 9e9, 9e9))

    def left_s(self) -> float:
        return self.timeline.pools[0].tracks[0].left_s(self.clock.now())

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


def test_hanging_replica_leaves_work_to_the_other() -> None:
    t = Table(replicas=2)
    t.begin(0)
    t.clock.advance(0.05 + OVERDUE_S)
    t.begin(1)
    t.wait(4)
    assert t.clear_s() == pytest.approx(0.050)
    busy = t.timeline.busy(t.queue, t.timeline.pools[0], t.clock.now())
    assert [each.replica for each in busy] == [t.replicas[1]]


def test_prepared_batch_begins_when_the_previous_ends() -> None:
    t = Table()
    first, second = t.begin(), t.begin()
    assert t.left_s() == pytest.approx(2 * BATCH_S)
    t.clock.advance(1.0)  # the first takes longer than expected
    took = t.timeline.end(first, 1.0)
    assert took.began == first.started
    assert t.left_s() == pytest.approx(BATCH_S)
    t.clock.advance(BATCH_S)
    took = t.timeline.end(second, BATCH_S)
    assert took.began == pytest.approx(first.started + 1.0)
    assert took.overhead_s == pytest.approx(0)
    assert t.left_s() == 0


def test_overhead_counts_from_the_possible_start() -> None:
    t = Table()
    ticket = Ticket(b"", item(0), t.clock.now(), 9e9, 9e9)
    t.clock.advance(0.003)  # the event loop was busy
    cost, now = t.queue.costs["cpu"], t.clock.now()
    batch = Batch(t.queue, t.replicas[0], cost, [ticket], 0, now, BATCH_S, False, True, SERVING)
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


def work(batches: int, *free_s: float, batch_s: float = 0.010, off: float = 0.0) -> Work:
    """Of a pool with a replica for each time at which one is free; by default one, at once."""
    free = free_s or (0.0,)
    return Work(free, [0.0] * len(free), batches, batch_s, off)


@pytest.mark.parametrize(
    ("works", "seconds"),
    [
        ([], 0.0),
        ([work(5, batch_s=0.0)], 0.0),  # nothing is known
        ([work(5, 0.1, 0.5, batch_s=0.0)], 0.1),  # but for what runs
        ([work(5)], 0.050),
        ([work(5, 0.003)], 0.053),
        ([work(4, 0.0, 0.0)], 0.020),
        ([work(5, 0.0, 0.0)], 0.030),  # the last batch is not divided
        ([work(5, 0.0, 1.0)], 0.050),  # too late to help
        ([work(2, 0.010, 0.015)], 0.025),
        ([work(1000, 0.0, 0.0, 0.025)], 3.345),
        ([work(30), work(30)], 0.150),  # two pools
    ],
)
def test_completion_time(works: list[Work], seconds: float) -> None:
    assert completion_s(works) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("others_s", "share_s"),
    [([], 1.0), ([9.0], 0.5), ([0.1], 0.9), ([0.1, 9.0], 0.45), ([9.0, 9.0, 9.0], 0.25)],
)
def test_models_share_a_device_equally(others_s: list[float], share_s: float) -> None:
    assert own_share_s(1.0, others_s) == pytest.approx(share_s)
