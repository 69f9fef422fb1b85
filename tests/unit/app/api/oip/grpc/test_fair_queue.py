"""How clients share gRPC's core and the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from app.api.oip.grpc.fair_queue import (
    CALLS_AHEAD,
    FRESH_COST,
    LOOK_S,
    LOST_S,
    SHARE_COST,
    STUCK_S,
    FairQueue,
)


class Loop:
    """An event loop whose turns are made by hand."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: dict[float, Callable[[], None]] = {}
        self.now_s = 0.0

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        assert delay_s not in self.later
        self.later[delay_s] = call
        return cast(asyncio.TimerHandle, object())

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()

    def turns(self) -> None:
        while self.soon:
            self.turn()

    def fire(self, delay_s: float) -> None:
        """The timer of this delay is due."""
        self.later.pop(delay_s)()
        self.turns()


class Client:
    """Sends frames that cost 1 each: calls, or others; the core reads them at once, or never."""

    def __init__(self, frames: int, *, calls: bool = False) -> None:
        self.queued = self.has_more = False
        self.calls = 0
        self.left = frames
        self.passed = 0
        self.ahead = 0
        self.reads = True
        self._of_calls = calls

    def is_read(self) -> bool:
        return self.reads

    def pass_on(self, budget: int, calls: int) -> int:
        count = min(self.left, budget, calls if self._of_calls else budget)
        self.calls = count if self._of_calls else 0
        self.left -= count
        self.passed += count
        self.has_more = self.left > 0
        return count

    def wait(self) -> None:
        self.queued = True

    def resume(self) -> None:
        self.queued = False


def made() -> tuple[Loop, FairQueue]:
    loop = Loop()
    return loop, FairQueue(loop.call_soon, loop.call_later, lambda: loop.now_s)


def test_a_turn_is_limited_and_shares_are_equal() -> None:
    loop, turns = made()
    clients = [Client(10_000) for _ in range(60)]
    for each in clients:
        turns.take(each)
    before = sum(each.passed for each in clients)
    assert before <= FRESH_COST
    for _ in range(500):
        loop.turn()
        total = sum(each.passed for each in clients)
        assert total - before <= FRESH_COST
        before = total
    shares = sorted(each.passed for each in clients[1:])  # the first was alone
    assert shares[-1] - shares[0] <= 2 * SHARE_COST


def test_a_client_that_did_not_wait_goes_before_busy_ones() -> None:
    loop, turns = made()
    for _ in range(60):
        turns.take(Client(10_000))
    for _ in range(10):  # each of them has waited
        loop.turn()
    late = Client(2)
    turns.take(late)
    loop.turn()
    assert late.left == 0


def test_calls_pass_as_the_server_begins_them() -> None:
    loop, turns = made()
    flood, other = Client(1000, calls=True), Client(5)
    turns.take(flood)
    loop.turns()
    assert flood.passed == CALLS_AHEAD
    turns.take(other)  # has no call
    assert other.left == 0
    for _ in range(10):
        turns.begun()
    loop.turns()
    assert flood.passed == CALLS_AHEAD + 10


def test_a_call_goes_before_those_of_a_flood() -> None:
    loop, turns = made()
    flood, other = Client(1000, calls=True), Client(1, calls=True)
    turns.take(flood)
    for _ in range(10):
        loop.turn()
    turns.take(other)
    turns.begun()
    for _ in range(3):
        loop.turn()
    assert other.left == 0


def test_lost_calls_are_forgotten_while_other_frames_pass() -> None:
    """Otherwise a flood of such frames keeps everybody from calling."""
    loop, turns = made()
    calls, frames = Client(1000, calls=True), Client(1_000_000)
    turns.take(calls)
    turns.take(frames)
    for _ in range(10):
        loop.turn()
    assert calls.passed == CALLS_AHEAD
    loop.later.pop(LOST_S)()
    for _ in range(10):
        loop.turn()
    assert calls.passed == 2 * CALLS_AHEAD
    assert frames.left


def test_no_more_passes_than_the_core_reads() -> None:
    loop, turns = made()
    clients = [Client(10_000) for _ in range(60)]
    for each in clients:
        each.reads = False
        turns.take(each)
    loop.turns()
    assert sum(each.passed for each in clients) <= FRESH_COST
    before = sum(each.passed for each in clients)
    clients[0].reads = True
    loop.fire(LOOK_S)
    assert sum(each.passed for each in clients) == before + FRESH_COST


def test_a_client_whose_frames_are_not_read_delays_others_only_for_a_moment() -> None:
    loop, turns = made()
    stuck, other = Client(10_000), Client(1)
    stuck.reads = False
    turns.take(stuck)
    turns.take(other)
    loop.turns()
    passed = stuck.passed
    assert (passed, other.left) == (FRESH_COST, 1)
    loop.now_s = 2 * STUCK_S
    loop.fire(LOOK_S)
    assert (stuck.passed, other.left) == (passed, 0)
    stuck.reads = True
    loop.fire(LOOK_S)
    assert stuck.left == 0


def test_calls_are_shared_equally_while_they_pass_one_at_a_time() -> None:
    """Nobody keeps a place at the front by passing what becomes free."""
    loop, turns = made()
    clients = [Client(1000, calls=True) for _ in range(10)]
    for each in clients:
        turns.take(each)
    loop.turns()
    before = [each.passed for each in clients]
    for _ in range(100):
        turns.begun()
        loop.turns()
    got = [each.passed - had for each, had in zip(clients, before, strict=True)]
    assert max(got) - min(got) <= 1


def test_a_new_call_waits_behind_those_that_wait() -> None:
    """Otherwise many clients with one call each would keep one of them waiting."""
    loop, turns = made()
    turns.take(Client(CALLS_AHEAD, calls=True))
    waiting = Client(1, calls=True)
    turns.take(waiting)
    loop.turns()
    turns.begun()
    turns.take(Client(1, calls=True))
    loop.turns()
    assert waiting.left == 0


def test_clients_that_are_never_read_delay_no_new_one() -> None:
    loop, turns = made()
    for _ in range(10):
        stuck = Client(10_000)
        stuck.reads = False
        turns.take(stuck)
        loop.turns()
        loop.now_s += 2 * STUCK_S
        loop.fire(LOOK_S)
        turns.take(stuck)
    new = Client(1)
    turns.take(new)
    assert (new.left, new.queued) == (0, False)


def test_all_that_was_sent_passes() -> None:
    loop, turns = made()
    clients = [Client(1000) for _ in range(5)]
    for each in clients:
        turns.take(each)
    loop.turns()
    assert [(each.left, each.queued) for each in clients] == [(0, False)] * 5


def test_calls_are_not_forgotten_while_the_server_begins_some() -> None:
    loop, turns = made()
    flood = Client(1000, calls=True)
    turns.take(flood)
    loop.turns()
    turns.begun()
    loop.fire(LOST_S)
    assert flood.passed == CALLS_AHEAD + 1
