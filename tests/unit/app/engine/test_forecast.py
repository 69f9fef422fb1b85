"""How much longer than expected a forecast takes things to last."""

from __future__ import annotations

import math

import pytest

from app.engine.batch_times import BatchTimes
from app.engine.batching import Batcher, Ticket
from app.engine.clock import ManualClock
from app.engine.forecast import Forecast
from app.engine.line import Line
from app.engine.pace import Pace
from app.engine.policy import BatchLimits
from app.engine.replicas import Replica
from app.metrics import Metrics
from app.types import Device, ModelId, Serving
from tests.unit.app.engine.harness import CONTRACT, item

MODEL = ModelId("m", 1)
BATCH_S = 0.010  # of one item each
ONE_S = 2 * 0.1 * BATCH_S  # two mean deviations of a batch that scatters by a tenth


def scattering(scatter: float) -> BatchTimes:
    times = BatchTimes(1, {1: BATCH_S})
    for index in range(200):
        times.took(1, BATCH_S * (1 + scatter * (-1) ** index))
    return times


def margin_s(
    batches: int,
    scatter: float = 0.1,
    *,
    replicas: int = 1,
    running: bool = False,
    running_off_s: float = 0.0,
) -> float:
    """What so many batches are allowed beyond what they are expected to take."""
    clock = ManualClock()
    all_of_them = [Replica(f"fake#{index}", Device("cpu")) for index in range(replicas)]
    paces = {}
    for replica in all_of_them:
        replica.models[MODEL] = Serving(())
        paces[replica.name] = Pace(scattering(scatter), 0.0)
        if running:
            replica.busy, replica.busy_off_s = True, running_off_s
            replica.busy_until = clock.now() + BATCH_S
    batcher = Batcher(100, 10**9)
    line = Line(MODEL, batcher, BatchLimits(1, 0.0), CONTRACT, Metrics().model(MODEL), paces)
    batcher.submit(Ticket(b"patient", item(0), 0.0, 9e9, 9e9))  # else an idle replica takes all
    forecast = Forecast(all_of_them, {MODEL: line}, clock)
    low_s, high_s = 0.0, 10.0
    while high_s - low_s > 1e-6:
        middle_s = (low_s + high_s) / 2
        if forecast.can_meet(line, batches, clock.now() + middle_s, middle_s, 1):
            high_s = middle_s
        else:
            low_s = middle_s
    expected_s = next(iter(paces.values())).times.expected_s(1)
    return high_s - expected_s * batches / replicas - (BATCH_S if running else 0.0)


def test_what_never_scatters_needs_none() -> None:
    assert margin_s(1, 0.0) == pytest.approx(0, abs=1e-5)
    assert margin_s(20, 0.0) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("batches", [1, 9, 16, 25])
def test_batches_are_off_by_themselves_and_their_mean_for_all(batches: int) -> None:
    times = scattering(0.1)
    one_s = 2 * times.deviation * times.expected_s(1)
    n = batches
    assert margin_s(n) == pytest.approx(one_s * math.sqrt(n + n**2 / 9), rel=0.01)


def test_the_batch_that_runs_is_off_by_what_its_own_model_is() -> None:
    assert margin_s(1, running=True) == pytest.approx(margin_s(1), abs=1e-5)
    assert 1.3 * ONE_S < margin_s(1, running=True, running_off_s=ONE_S / 2) < 1.6 * ONE_S


def test_of_several_replicas_each_has_that_of_its_own_share() -> None:
    assert margin_s(20, replicas=2) < 0.8 * margin_s(20)
