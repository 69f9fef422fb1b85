"""Open waiters: each let go at its deadline, by one timer; nothing stays of settled ones."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.clock import ManualClock, Timer
from app.engine.submission import COMPACT_ABOVE, OpenSubmissions, Submission
from app.errors import DeadlineExceeded, ShuttingDown
from app.types import Array

KEY = b"k"


class CountingClock(ManualClock):
    """Knows how many timers are set and not yet due or cancelled."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.timers: list[_Timer] = []

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        timer = _Timer(when)

        def due() -> None:
            timer.live = False
            call()

        timer.real = super().call_at(when, due)
        self.timers.append(timer)
        return timer

    @property
    def live(self) -> list[float]:
        """The moments of the timers that are set."""
        return [timer.when for timer in self.timers if timer.live]


class _Timer:
    def __init__(self, when: float) -> None:
        self.when = when
        self.live = True
        self.real: Timer | None = None

    def cancel(self) -> None:
        self.live = False
        if self.real is not None:
            self.real.cancel()


class Scene:
    """Waiters of one `OpenSubmissions`, and the order in which they ended."""

    def __init__(self, clock: CountingClock | None = None) -> None:
        self.clock = clock or CountingClock()
        self.open = OpenSubmissions(self.clock)
        self.ended: list[float] = []

    def add(self, deadline: float) -> Submission:
        waiter = Submission(deadline, self._closed)
        waiter.expect()
        self.open.add(waiter)
        return waiter

    def settle(self, waiter: Submission) -> weakref.ref[Array]:
        outcome = np.zeros(1)
        waiter.settle(KEY, {"y": outcome}, 0.0, 0.0, 1)
        return weakref.ref(outcome)

    def _closed(self, waiter: Submission) -> None:
        self.open.close(waiter)
        if waiter.error is not None:
            self.ended.append(waiter.deadline)


def test_one_timer_expires_thousands_in_order() -> None:
    scene, rng = Scene(), random.Random(1)
    deadlines = [rng.random() * 100 for _ in range(5000)]
    waiters = [scene.add(deadline) for deadline in deadlines]
    assert scene.clock.live == [min(deadlines)]
    scene.clock.advance(50)
    assert scene.ended == sorted(d for d in deadlines if d <= 50)
    assert len(scene.clock.live) == 1
    scene.clock.advance(50)
    assert scene.ended == sorted(deadlines)
    assert scene.clock.live == []
    assert all(isinstance(waiter.error, DeadlineExceeded) for waiter in waiters)


def test_early_timer_expires_no_waiter() -> None:
    class Hasty(CountingClock):
        early_s = 0.25  # once: as a loop that counts milliseconds may be

        def call_at(self, when: float, call: Callable[[], None]) -> Timer:
            early_s, self.early_s = self.early_s, 0.0
            return super().call_at(when - early_s, call)

    scene = Scene(Hasty())
    scene.add(1)
    scene.clock.advance(0.8)
    assert scene.ended == []
    assert scene.clock.live == [1]
    scene.clock.advance(0.2)
    assert scene.ended == [1]


def test_raising_callback_does_not_affect_other_waiters() -> None:
    scene = Scene()

    def broken(_: Submission) -> None:
        raise RuntimeError("a bug")

    for deadline in (3.0, 2.0, 1.0):  # all but the first are out of order
        scene.add(deadline)
    scene.add(0.5).closed = broken
    scene.clock.advance(2.5)
    assert scene.ended == [1.0, 2.0]
    scene.clock.advance(1.0)
    assert scene.ended == [1.0, 2.0, 3.0]


class TestMemory:
    @pytest.mark.parametrize("deadline", [1e6, 1e5])  # in the order of arrival, and before others
    @pytest.mark.parametrize("waiting", [0, 100])
    def test_settled_waiters_are_released_before_others(
        self, waiting: int, deadline: float
    ) -> None:
        scene = Scene()
        waiters = [scene.add(1e6) for _ in range(waiting)]
        for _ in range(COMPACT_ABOVE):
            scene.settle(scene.add(deadline))
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            outcomes = [scene.settle(scene.add(deadline)) for _ in range(20_000)]
            alive = sum(each() is not None for each in outcomes)
            del outcomes
            growth = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert alive == 0
        assert growth < 200 * (COMPACT_ABOVE + 2 * waiting)  # a few words each, not 20,000 of them
        scene.clock.advance(1e6)
        assert scene.ended == [1e6] * len(waiters)


class TestEnd:
    async def test_it_reports_when_no_waiter_is_left(self) -> None:
        scene = Scene()
        await scene.open.until_none()
        waiters = [scene.add(1), scene.add(2)]
        drained = asyncio.create_task(scene.open.until_none())
        await asyncio.sleep(0)
        scene.settle(waiters[0])
        await asyncio.sleep(0)
        assert not drained.done()
        scene.settle(waiters[1])
        await drained

    def test_all_can_be_failed(self) -> None:
        scene = Scene()
        waiters = [scene.add(number) for number in range(1, 50)]
        error = ShuttingDown("the server stopped")
        scene.open.fail_all(error)
        assert all(waiter.error is error for waiter in waiters)
        scene.clock.advance(100)
        assert all(waiter.error is error for waiter in waiters)

    def test_closing_twice_or_an_unknown_waiter_is_harmless(self) -> None:
        scene = Scene()
        waiter = scene.add(1)
        scene.open.close(waiter)
        scene.open.close(waiter)
        scene.open.close(Submission(1, lambda _: None))
        scene.clock.advance(2)
        assert waiter.error is None

    async def test_several_tasks_may_wait_for_the_end(self) -> None:
        scene = Scene()
        waiter = scene.add(1)
        drains = [asyncio.create_task(scene.open.until_none()) for _ in range(2)]
        await asyncio.sleep(0)
        scene.settle(waiter)
        done, _ = await asyncio.wait(drains, timeout=30)
        for each in drains:
            each.cancel()
        assert len(done) == 2


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "settle", "hasten", "advance"]), st.integers(0, 20)),
        max_size=60,
    )
)
def test_every_waiter_ends_at_its_deadline(steps: list[tuple[str, int]]) -> None:
    scene = Scene()
    waiters: list[Submission] = []
    settled: set[Submission] = set()
    for step, number in steps:
        if step == "add":
            waiters.append(scene.add(scene.clock.now() + number + 1))
        elif step == "settle" and waiters:
            waiter = waiters[number % len(waiters)]
            if waiter.error is None:
                scene.settle(waiter)
                settled.add(waiter)
        elif step == "hasten" and waiters:
            waiter = waiters[number % len(waiters)]
            if waiter.error is None and waiter not in settled:
                sooner = min(waiter.deadline, scene.clock.now() + 1 + number % 3)
                scene.open.hasten(waiter, sooner)
        elif step == "advance":
            scene.clock.advance(number)
        assert len(scene.clock.live) <= 1
        for waiter in waiters:
            late = waiter.deadline <= scene.clock.now() and waiter not in settled
            assert (waiter.error is not None) is late


async def test_hastening_a_settled_waiter_is_harmless() -> None:
    scene = Scene()
    waiter = scene.add(2.0)
    scene.settle(waiter)
    scene.open.hasten(waiter, 1.0)
    await asyncio.wait_for(scene.open.until_none(), 30)
