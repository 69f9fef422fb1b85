"""The state machine of a release, with clocks that the tests move."""

from __future__ import annotations

import operator

import pytest

from app import errors
from app.metrics import Metrics
from app.registry.releases import Phase, Release, Stage, StopIf
from app.serving.releases.judge import (
    BOUNDS,
    DOWN_S,
    FAILURES,
    LEAST_WATCH_S,
    Counts,
    Judge,
    counts_of,
)
from app.types import ModelId

RULES = StopIf(errors_above=0.1, latency_above=1.5, min_requests=50)
RELEASE = Release(to=3, steps=[1, 50, 100], every_s=600, stop_if=RULES)


def took(ms: float, requests: int) -> tuple[float, ...]:
    """The buckets of this number of requests, all of which took as long."""
    return tuple(requests * (ms / 1000 <= bound) for bound in BOUNDS)


class Course:
    """A release of `m` from version 2 to 3, looked at again and again.

    Args:
        stage: where it begins.
    """

    def __init__(self, stage: Stage | None = None) -> None:
        self.moment, self.wall = 100.0, 1_000_000.0
        self.counts = {2: Counts(), 3: Counts()}
        self.served = [3, 2]
        self.down: set[int] = set()
        self.release = RELEASE
        self.stage = stage
        self.restart()

    def restart(self) -> None:
        self.judge = Judge(lambda: self.moment, lambda: self.wall)

    def passes(self, seconds: float) -> None:
        self.moment += seconds
        self.wall += seconds

    def happens(self, version: int = 3, *, ok: int = 0, failed: int = 0, ms: float = 1) -> None:
        numbers = (ok + failed, ok, failed, ok * ms / 1000)
        self.counts_more(version, Counts(took(ms, ok), *numbers))

    def compares(self, *, agreed: int = 0, other: int = 0) -> None:
        self.counts_more(3, Counts(compared=agreed + other, agreed=agreed))

    def counts_more(self, version: int, done: Counts) -> None:
        before = self.counts[version]
        within = tuple(map(operator.add, before.within, done.within))
        self.counts[version] = Counts(within, *map(operator.add, before[1:], done[1:]))

    def look(self) -> Stage:
        counts = {ModelId("m", number): each for number, each in self.counts.items()}
        self.stage = self.judge.next_stage(
            "m", self.release, self.stage, self.served, counts, self.works
        )
        assert self.stage is not None
        return self.stage

    def works(self, model: ModelId) -> bool:
        return model.version not in self.down

    def at_step(self) -> tuple[Phase, int]:
        stage = self.look()
        return stage.phase, stage.step


@pytest.fixture
def course() -> Course:
    """A release that is watched in its first step."""
    course = Course()
    course.look()
    course.look()
    return course


def test_it_goes_on_step_by_step(course: Course) -> None:
    for step in range(3):
        assert course.at_step() == (Phase.RUNNING, step)
        began = course.wall
        course.passes(599)
        assert course.at_step() == (Phase.RUNNING, step)
        course.passes(1)
        after = course.look()
        assert after.since == began + 600
    assert after.phase is Phase.COMPLETED
    course.passes(1e6)
    course.happens(failed=1000)
    assert course.at_step() == (Phase.COMPLETED, 2)


def test_failures_roll_it_back(course: Course) -> None:
    course.happens(ok=45, failed=5)  # as many as are allowed
    assert course.at_step() == (Phase.RUNNING, 0)
    course.happens(failed=1)
    stage = course.look()
    assert (stage.phase, stage.percent) == (Phase.ROLLED_BACK, 0)
    assert stage.reason == "0.118 of the items of version 3 failed, more than errors_above = 0.1"
    course.passes(1e6)
    assert course.look() == stage


def test_few_requests_are_not_judged(course: Course) -> None:
    course.happens(failed=49)
    assert course.at_step() == (Phase.RUNNING, 0)
    course.happens(failed=1)
    assert course.at_step() == (Phase.ROLLED_BACK, 0)


def test_one_request_of_many_items_decides_nothing(course: Course) -> None:
    course.counts[3] = Counts(requests=1, failed=64)
    assert course.at_step() == (Phase.RUNNING, 0)


def test_mistakes_of_callers_decide_nothing(course: Course) -> None:
    course.counts[3] = Counts(requests=1000, ok=10, failed=10)
    assert course.at_step() == (Phase.RUNNING, 0)


def test_only_the_current_step_counts(course: Course) -> None:
    course.happens(ok=1000)
    course.passes(600)
    course.look()
    course.look()
    course.happens(ok=40, failed=10)
    assert course.at_step() == (Phase.ROLLED_BACK, 1)


def test_failures_of_the_old_version_do_not_matter(course: Course) -> None:
    course.happens(2, failed=1000)
    assert course.at_step() == (Phase.RUNNING, 0)


def test_a_slower_version_is_rolled_back(course: Course) -> None:
    course.happens(2, ok=50, ms=10)
    course.happens(3, ok=49, ms=20)
    assert course.at_step() == (Phase.RUNNING, 0)
    course.happens(3, ok=1, ms=20)
    assert course.at_step() == (Phase.ROLLED_BACK, 0)
    assert course.look().reason == (
        "requests of version 3 took 20 ms on average, those of the old version 10 ms, and "
        "latency_above = 1.5"
    )


def test_one_that_is_slightly_slower_goes_on(course: Course) -> None:
    course.happens(2, ok=50, ms=10)
    course.happens(3, ok=50, ms=14.9)
    assert course.at_step() == (Phase.RUNNING, 0)


def test_without_enough_requests_of_the_old_version_latency_is_not_judged(course: Course) -> None:
    course.happens(2, ok=49, ms=1)
    course.happens(3, ok=500, ms=100)
    assert course.at_step() == (Phase.RUNNING, 0)


def slow_tail(course: Course, *, slow: int, ms: float, of: int = 1000) -> Stage:
    """The stage once a part of the new version's requests was slow; the old one's p99 is 5 ms."""
    course.release = RELEASE.model_copy(update={"stop_if": StopIf(p99_above=1.5)})
    course.look()
    course.look()
    course.happens(2, ok=980, ms=1)
    course.happens(2, ok=20, ms=5)
    course.happens(3, ok=of - slow, ms=1)
    course.happens(3, ok=slow, ms=ms)
    return course.look()


def test_a_version_with_a_slow_tail_is_rolled_back(course: Course) -> None:
    stage = slow_tail(course, slow=36, ms=11)
    assert stage.phase is Phase.ROLLED_BACK
    assert stage.reason == (
        "36 of 1000 computed requests of version 3 took more than 10 ms; the p99 of the old "
        "version is at most 6.3 ms, and p99_above = 1.5"
    )


@pytest.mark.parametrize(
    ("slow", "ms", "of"),
    [(25, 11, 1000), (1000, 9, 1000), (9, 11, 50), (49, 11, 49)],
    ids=["by chance", "within the bounds' doubt", "few by chance", "too few requests"],
)
def test_a_tail_that_may_be_chance_goes_on(course: Course, slow: int, ms: float, of: int) -> None:
    assert slow_tail(course, slow=slow, ms=ms, of=of).phase is Phase.RUNNING


def test_nothing_is_slower_than_what_no_bound_limits(course: Course) -> None:
    course.release = RELEASE.model_copy(update={"stop_if": StopIf(p99_above=1)})
    course.look()
    course.look()
    course.happens(2, ok=50, ms=40_000)
    course.happens(3, ok=50, ms=80_000)
    assert course.at_step() == (Phase.RUNNING, 0)


def test_another_old_version_is_compared_from_its_own_beginning(course: Course) -> None:
    course.counts[1] = Counts(took(1, 100), requests=100, ok=100, seconds=0.1)
    course.happens(3, ok=100, ms=20)
    course.served = [3, 1]
    assert course.at_step() == (Phase.RUNNING, 0)


def test_a_version_with_other_answers_is_rolled_back(course: Course) -> None:
    course.release = RELEASE.model_copy(update={"stop_if": StopIf(agreement_below=0.9)})
    course.look()
    course.look()
    course.compares(agreed=40, other=9)  # too few
    assert course.at_step() == (Phase.RUNNING, 0)
    course.compares(agreed=41)
    assert course.at_step() == (Phase.RUNNING, 0)  # as many as are required
    course.compares(other=1)
    assert course.at_step() == (Phase.ROLLED_BACK, 0)
    assert course.look().reason == (
        "version 3 agreed with the old version on 81 of 91 items (0.89), less than "
        "agreement_below = 0.9"
    )


def test_without_the_rule_answers_may_differ(course: Course) -> None:
    course.compares(other=1000)
    assert course.at_step() == (Phase.RUNNING, 0)


def test_a_paused_release_stays_but_is_judged(course: Course) -> None:
    course.stage = course.look().changed(course.wall, phase=Phase.PAUSED)
    course.look()
    course.passes(1e6)
    assert course.at_step() == (Phase.PAUSED, 0)
    course.happens(failed=60)
    assert course.at_step() == (Phase.ROLLED_BACK, 0)


def test_a_version_that_no_replica_runs_is_rolled_back(course: Course) -> None:
    course.down = {3}
    course.passes(600)
    assert course.at_step() == (Phase.RUNNING, 0)  # it may come back in a moment
    course.passes(DOWN_S)
    assert course.at_step() == (Phase.ROLLED_BACK, 0)
    assert course.look().reason == "no replica could run version 3 for 10 s"


def test_a_replica_that_comes_back_or_runs_neither_version_decides_nothing(course: Course) -> None:
    for down in ({3}, set(), {3}, {2, 3}, {3}):
        course.down = down
        course.look()
        course.passes(DOWN_S - 1)
    assert course.at_step() == (Phase.RUNNING, 0)
    course.down = {2, 3}
    course.passes(600)
    assert course.at_step() == (Phase.RUNNING, 0)
    course.down = set()
    assert course.at_step() == (Phase.RUNNING, 1)


def test_it_waits_until_both_versions_are_served() -> None:
    course = Course()
    for served in ([2], [3]):
        course.served = served
        assert course.judge.next_stage("m", RELEASE, None, served, {}, course.works) is None
    course.served = [3, 2]
    assert course.at_step() == (Phase.RUNNING, 0)


def test_a_step_does_not_count_while_a_version_is_missing(course: Course) -> None:
    course.passes(599)
    course.served = [2]
    assert course.at_step() == (Phase.RUNNING, 0)
    course.passes(600)
    course.served = [3, 2]
    course.look()
    course.passes(1)
    assert course.at_step() == (Phase.RUNNING, 0)
    course.passes(599)
    assert course.at_step() == (Phase.RUNNING, 1)


def test_after_a_restart_a_step_ends_in_its_time_but_is_watched_first(course: Course) -> None:
    course.passes(300)
    course.restart()
    course.look()
    course.passes(299)
    assert course.at_step() == (Phase.RUNNING, 0)
    course.passes(1)
    assert course.at_step() == (Phase.RUNNING, 1)
    course.restart()
    course.passes(1e6)
    course.look()
    course.passes(LEAST_WATCH_S - 1)
    assert course.at_step() == (Phase.RUNNING, 1)
    course.passes(1)
    assert course.at_step() == (Phase.RUNNING, 2)


def test_a_clock_that_is_set_back_does_not_stop_it(course: Course) -> None:
    course.wall -= 1e6
    course.passes(600)
    assert course.at_step() == (Phase.RUNNING, 1)


def test_a_changed_release_begins_anew(course: Course) -> None:
    course.passes(600)
    assert course.at_step() == (Phase.RUNNING, 1)
    course.release = RELEASE.model_copy(update={"every_s": 60.0})
    assert course.at_step() == (Phase.RUNNING, 0)
    before = course.stage
    course.release = RELEASE.model_copy(update={"to": 4})
    assert course.look() == before  # 4 is not served yet; 2 still serves
    course.served = [4, 3, 2]
    assert course.look().release.to == 4
    assert course.look().old == 2


def test_every_failure_of_an_item_counts() -> None:
    failures = {kind.code for kind in errors.ItemFailed.__subclasses__()}
    assert failures - FAILURES == {errors.InvalidItem.code}  # a mistake of the caller


async def test_counts_are_those_of_the_metrics() -> None:
    metrics = Metrics()
    model = metrics.model(ModelId("m", 3))
    metrics.model(ModelId("other", 1)).outcome("ok", 9)
    for code in (*sorted(FAILURES), "abandoned", "invalid_item", "shutting_down"):
        model.outcome(code, 2)
    model.outcome("ok", 7)
    model.request(0.5, 0.1, 0.2, computed=True)
    model.request(0.1, 0.0, 0.0, computed=False)
    model.count_failure(0.3)
    for copies, result in enumerate(("agrees", "same_label", "differs", "failed", "dropped")):
        metrics.shadow_items.labels("m", "3", result).inc(10**copies)
    found = await metrics.read(lambda registry: counts_of({"m"}, registry))
    (counts,) = found.values()
    assert found.keys() == {ModelId("m", 3)}
    assert counts[1:] == pytest.approx((3, 7, 2 * len(FAILURES), 0.3, 1111, 11))
    assert counts.within == tuple(float(bound >= 0.5) for bound in BOUNDS)
