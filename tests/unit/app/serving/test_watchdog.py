"""A replica at the same step for too many checks hangs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from app.serving.watchdog import Watchdog


@dataclass
class Worker:
    name: str
    step: int | None = None


def looks(watch: Watchdog, worker: Worker, steps: list[int | None]) -> list[bool]:
    seen = []
    for worker.step in steps:
        seen.append(watch.hangs(worker))
    return seen


@pytest.mark.parametrize(
    ("steps", "last_hangs"),
    [
        ([7] * 4, False),
        ([7] * 5, True),
        ([None] * 9, False),
        ([7, 7, 7, 7, 8], False),
        ([7, 7, 7, 8, 8, 8, 8], False),
        ([7, 7, 7, 8, 8, 8, 8, 8], True),
        ([7, 7, 7, 7, None, 8, 8, 8, 8], False),
    ],
)
def test_step_hangs_after_too_many_checks(steps: list[int | None], last_hangs: bool) -> None:
    assert looks(Watchdog(4), Worker("cpu#0"), steps)[-1] is last_hangs


def test_a_hanging_replica_is_found_at_every_check() -> None:
    assert looks(Watchdog(2), Worker("cpu#0"), [1] * 5) == [False, False, True, True, True]


def test_replicas_are_checked_independently() -> None:
    watch, stuck, busy = Watchdog(2), Worker("cpu#0", 1), Worker("cpu#1")
    found = []
    for busy.step in range(10, 14):
        found.append((watch.hangs(stuck), watch.hangs(busy)))
    assert found == [(False, False), (False, False), (True, False), (True, False)]
