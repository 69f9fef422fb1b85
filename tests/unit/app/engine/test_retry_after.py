"""What refused callers are told comes true: within a factor 2 where it is above 20 ms."""

from __future__ import annotations

import random

import pytest

from tests.unit.app.engine.simulation import Asked, Seconds, Simulation, simulation

pytestmark = pytest.mark.slow
LEAST_S, FACTOR = 0.020, 2.0
DEADLINE_S = 0.1


def varying(batch_s: Seconds, spread: float, seed: int) -> Seconds:
    """Batches that take up to `spread` more or less than expected."""
    draw = random.Random(seed)
    return lambda items: batch_s(items) * draw.uniform(1 - spread, 1 + spread)


def linear(items: int) -> float:
    return 0.006 * items


def flat(items: int) -> float:
    return 0.012 + 0.0005 * items


KINDS = {"linear": linear, "flat": flat}


def poisson(s: Simulation, model: str, rate_per_s: float, seconds: float, seed: int) -> None:
    draw, at = random.Random(seed), s.clock.now()
    end = at + seconds
    while (at := at + draw.expovariate(rate_per_s)) < end:
        s.ask_at(at, model, DEADLINE_S)


def told_and_true(asked: list[Asked]) -> list[tuple[float, float]]:
    """Of each refusal, and when all was done that had been accepted before it."""
    found, last = [], 0.0
    for each in asked:
        if each.retry_after_s is None:
            assert each.done_at is not None
            last = max(last, each.done_at)
        else:
            found.append((each.retry_after_s, max(0.0, last - each.at)))
    return found


def share_within(pairs: list[tuple[float, float]]) -> float:
    judged = [pair for pair in pairs if max(pair) > LEAST_S]
    return sum(told <= FACTOR * true and true <= FACTOR * told for told, true in judged) / len(
        judged
    )


@pytest.mark.parametrize(("kind", "replicas", "times"), [("linear", 2, 4.0), ("flat", 1, 2.0)])
async def test_retry_after_is_accurate(kind: str, replicas: int, times: float) -> None:
    batch_s, size = KINDS[kind], 32
    capacity_per_s = replicas * size / batch_s(size)
    seconds, expected = {"model": varying(batch_s, 0.2, seed=1)}, {"model": batch_s}
    s = simulation(seconds, [("model",)] * replicas, size, expected)
    poisson(s, "model", times * capacity_per_s, 1.0, seed=2)
    await s.run(2)
    pairs = told_and_true(s.asked)
    assert len(pairs) > 100
    assert share_within(pairs) >= 0.99
    expired = [each.expired for each in s.asked if each.retry_after_s is None]
    assert sum(expired) < 0.01 * len(expired)
    assert len(expired) - sum(expired) > 0.9 * capacity_per_s


async def test_no_request_is_rejected_needlessly() -> None:
    """Of 2,000 at 0.7 of the capacity: even the best of servers would have to refuse a few."""
    replicas = 2
    seconds, expected = {"model": varying(linear, 0.1, seed=1)}, {"model": linear}
    s = simulation(seconds, [("model",)] * replicas, 32, expected)
    rate_per_s = 0.7 * replicas / 0.006
    poisson(s, "model", rate_per_s, 2_000 / rate_per_s, seed=5)
    await s.run(2_000 / rate_per_s + 2)
    refused = sum(each.retry_after_s is not None for each in s.asked)
    assert refused <= 0.001 * len(s.asked)
    assert sum(each.expired for each in s.asked) <= 0.001 * len(s.asked)


async def test_retry_after_includes_the_other_models_share() -> None:
    s = simulation({"one": linear, "other": linear}, [("one", "other")])
    poisson(s, "one", 2 / 0.006, 2, seed=3)
    poisson(s, "other", 2 / 0.006, 2, seed=4)
    await s.run(4)
    for model in ("one", "other"):
        pairs = told_and_true([each for each in s.asked if each.model == model])
        assert len(pairs) > 100
        assert share_within(pairs) >= 0.95
