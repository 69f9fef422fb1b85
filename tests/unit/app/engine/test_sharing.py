"""Models share several replicas: none is starved, whatever is flooded, and where one is missing."""

from __future__ import annotations

import pytest

from tests.unit.app.engine.simulation import Seconds, Simulation, simulation

BOTH = ("flooded", "other")


def per_batch(seconds: float) -> Seconds:
    return lambda _: seconds


def flood(s: Simulation, model: str, count: int) -> None:
    for _ in range(count):
        s.ask(model)


async def test_flood_on_two_replicas_delays_by_one_batch() -> None:
    s = simulation({"flooded": per_batch(0.5), "other": per_batch(0.001)}, [BOTH, BOTH])
    start = s.clock.now()
    flood(s, "flooded", 1000)
    for number in range(20):
        s.ask_at(start + 1.1 + 0.7 * number, "other")
    await s.run(16)
    others = [each for each in s.asked if each.model == "other"]
    waits = [each.done_at - each.at for each in others if each.done_at is not None]
    assert len(waits) == 20
    assert max(waits) < 0.51
    assert s.used_s("flooded") > 31.9  # what the other does not need is not lost


async def test_model_is_admitted_by_its_own_replica() -> None:
    s = simulation({"flooded": per_batch(0.05), "other": per_batch(0.05)}, [BOTH, ("flooded",)], 1)
    for _ in range(10):
        s.ask("other", within=0.54)  # half a second of the one replica
    await s.run(0.01)
    refused = s.ask("other", within=0.53)
    assert refused.retry_after_s == pytest.approx(0.49)
    taken = s.ask("other", within=0.6)
    assert s.ask("flooded", within=0.06).retry_after_s is None  # the other one is free
    await s.run(0.6)
    assert taken.done_at == pytest.approx(taken.at + 0.54)
    assert not any(each.expired for each in s.asked)
