"""The queue knows at every moment how many items wait, and how many bytes they have."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.engine.queue import Load, Ticket, TicketQueue, TicketState
from tests.unit.app.engine.harness import item

LIMIT_ITEMS, LIMIT_BYTES = 20, 200
NUMBERS = st.integers(1, 4)  # of an item: four bytes each


class Queue(RuleBasedStateMachine):
    """Whatever is done to a queue, held against what its tickets themselves say."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.queue = TicketQueue(LIMIT_ITEMS, LIMIT_BYTES)
        self.tickets: list[Ticket] = []
        self.running: list[Ticket] = []

    @property
    def waiting(self) -> list[Ticket]:
        return [each for each in self.tickets if each.state is TicketState.WAITING]

    @property
    def asked(self) -> list[Ticket]:
        return [each for each in self.tickets if each.state is TicketState.ASKED]

    @rule(size=NUMBERS, within=st.floats(0.5, 20), ask=st.booleans())
    def submit(self, size: int, within: float, ask: bool) -> None:
        made = item(1.0, size)
        nbytes = self.queue.waiting_bytes + made.nbytes
        if self.queue.waiting < LIMIT_ITEMS and nbytes <= LIMIT_BYTES:
            due = self.now + within
            ticket = Ticket(b"%d" % len(self.tickets), made, self.now, due, due)
            self.tickets.append(ticket)
            if ask:
                self.queue.ask(ticket)
            else:
                self.queue.submit(ticket)

    @rule(data=st.data())
    @precondition(lambda self: self.asked)
    def submit_asked(self, data: st.DataObject) -> None:
        self.queue.submit(data.draw(st.sampled_from(self.asked)))

    @rule(data=st.data())
    @precondition(lambda self: self.waiting or self.asked)
    def withdraw(self, data: st.DataObject) -> None:
        self.queue.withdraw(data.draw(st.sampled_from(self.waiting + self.asked)))

    @rule(data=st.data(), within=st.floats(0.5, 20))
    @precondition(lambda self: self.waiting or self.asked)
    def retime(self, data: st.DataObject, within: float) -> None:
        ticket = data.draw(st.sampled_from(self.waiting + self.asked))
        self.queue.retime(ticket, self.now + within)

    @rule(data=st.data(), size=st.integers(1, 6))
    @precondition(lambda self: self.waiting)
    def take(self, data: st.DataObject, size: int) -> None:
        shape = data.draw(st.sampled_from(self.queue.shapes()))
        batch, expired = self.queue.take(shape.groups, size, self.now)
        assert len(batch) <= size
        assert all(each.expires_at <= self.now for each in expired)
        self.running += batch

    @rule()
    def put_back(self) -> None:
        self.queue.put_back([each for each in self.running if not each.moved])
        self.running = []

    @rule(seconds=st.floats(0, 10))
    def later(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_sums_are_those_of_what_waits(self) -> None:
        waiting = self.waiting + self.asked
        nbytes = sum(each.item.nbytes for each in waiting)
        assert (self.queue.waiting, self.queue.waiting_bytes) == (len(waiting), nbytes)
        assert sum(each.items for each in self.queue.waiting_by_shape()) == len(waiting)
        assert self.queue.queued == len(self.waiting)
        shapes = self.queue.shapes()
        assert {each.groups[0] for each in shapes} == {each.group for each in self.waiting}
        for shape in shapes:
            of_it = [each for each in self.waiting if each.group == shape.groups[0]]
            assert shape.oldest_at == min(each.enqueued_at for each in of_it)

    def teardown(self) -> None:
        for ticket in self.asked:
            self.queue.submit(ticket)
        while self.queue.waiting:
            for shape in self.queue.shapes():
                self.queue.take(shape.groups, 100, self.now)
        assert (self.queue.waiting, self.queue.waiting_bytes) == (0, 0)
        assert self.waiting == []


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_tickets_leave_in_deadline_order() -> None:
    queue = TicketQueue(10, 1000)
    made = {due: Ticket(b"%d" % due, item(due), 0.0, due, due) for due in (5, 3, 9, 3.5, 7)}
    for ticket in made.values():
        queue.submit(ticket)
    queue.retime(made[9], 4)
    queue.withdraw(made[3.5])
    assert queue.due_before(4) == [Load(2)]
    groups = queue.shapes()[0].groups
    first, _ = queue.take(groups, 2, 0.0)
    assert first == [made[3], made[9]]
    queue.put_back(first)
    assert queue.take(groups, 10, 0.0)[0] == [made[3], made[9], made[5], made[7]]


def test_oldest_ticket_may_have_the_last_deadline() -> None:
    queue = TicketQueue(10, 1000)
    asked, later = Ticket(b"1", item(1), 0.0, 9.0, 9.0), Ticket(b"2", item(2), 1.0, 5.0, 5.0)
    queue.ask(asked)
    queue.submit(later)
    queue.submit(asked)
    assert queue.shapes()[0].oldest_at == 0.0
