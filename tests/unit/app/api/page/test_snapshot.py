"""The arithmetic of GET /live: rates, means and quantiles between two readings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from app.api.page.snapshot import Change, quantile, read, snapshot, totals
from app.metrics import Metrics
from app.metrics.gauges import ModelGauges
from app.types import CacheCounts, ModelId

DIGITS = ModelId("digits", 3)


async def between(metrics: Metrics, happens: Callable[[], None], seconds: float) -> dict[str, Any]:
    """The snapshot of an interval in which something happens."""
    before = await metrics.read(read)
    happens()
    return snapshot(Change(before, await metrics.read(read), seconds), {"cpu#0": "ready"})


def served(metrics: Metrics, model: ModelId) -> None:
    values = ModelGauges(
        waiting=5.0,
        queue_limit=64.0,
        replicas=1.0,
        waiting_bytes=0.0,
        queue_limit_bytes=0.0,
        predicted_wait_s=0.0125,
        cold=0.0,
    )
    metrics.add_model(model, ModelGauges(*(lambda value=each: value for each in values)))


async def test_rates_are_per_second_of_the_interval() -> None:
    metrics = Metrics()
    metrics.request("/predict", 200, "ok").count(0.002)
    metrics.requests_open = 7

    def happens() -> None:
        for _ in range(30):
            metrics.request("/predict", 200, "ok").count(0.002)
            metrics.request("/batch-predict", 200, "ok").count(0.002)
        for _ in range(3):
            metrics.request("/predict", 503, "overloaded").count(0.0001)

    requests = (await between(metrics, happens, 1.5))["requests"]
    assert (requests["per_s"], requests["in_flight"]) == (42.0, 7)
    assert requests["failed_per_s"] == {"overloaded": 2.0}
    assert requests["failed_total"] == {"overloaded": 3}
    assert 1 < requests["p50_ms"] < requests["p99_ms"] <= 2.5


async def test_model_reports_its_work_and_queue() -> None:
    metrics = Metrics()
    served(metrics, DIGITS)
    model = metrics.model(DIGITS)

    def happens() -> None:
        model.outcome("ok", 12)
        model.outcome("backend_failed", 4)
        model.computed.inc(8)
        model.count_lookups(CacheCounts(hit=3, miss=8, joined=1))
        for size, seconds in ((2, 0.002), (6, 0.004)):
            model.batch_size.observe(size)
            model.compute_seconds.observe(seconds)
        model.queue_seconds.observe(0.001)

    (found,) = (await between(metrics, happens, 2.0))["models"]
    assert found == {
        "name": "digits",
        "version": 3,
        "items_per_s": 6.0,
        "computed_per_s": 4.0,
        "batches_per_s": 1.0,
        "batch_items": 4.0,
        "queue_items": 5,
        "queue_limit_items": 64,
        "predicted_wait_ms": 12.5,
        "hit_per_s": 1.5,
        "miss_per_s": 4.0,
        "joined_per_s": 0.5,
        "queue_ms": 1.0,
        "compute_ms": 3.0,
    }


async def test_no_work_gives_no_means_or_quantiles() -> None:
    metrics = Metrics()
    served(metrics, DIGITS)
    metrics.request("/predict", 200, "ok").count(0.002)
    metrics.model(DIGITS).batch_size.observe(2)
    found = await between(metrics, lambda: None, 1.0)
    requests, (model,) = found["requests"], found["models"]
    assert (requests["per_s"], requests["p50_ms"], requests["p99_ms"]) == (0.0, None, None)
    assert requests["failed_per_s"] == {}
    assert (model["batch_items"], model["queue_ms"], model["compute_ms"]) == (None, None, None)


async def test_replica_reports_its_busy_share() -> None:
    metrics = Metrics()
    metrics.replica("cpu#0", "cpu", lambda: True)
    metrics.replica("cpu#1", "cpu", lambda: False)

    def happens() -> None:
        metrics.batches_of("cpu#0", "cpu").count_batch(10, busy_s=0.5, compute_s=0.4)
        metrics.batches_of("cpu#1", "cpu").count_batch(
            4, busy_s=9.0, compute_s=9.0
        )  # began long before

    one, two = (await between(metrics, happens, 2.0))["replicas"]
    assert one == {
        "name": "cpu#0",
        "device": "cpu",
        "ready": True,
        "state": "ready",
        "busy_share": 0.25,
        "items_per_s": 5.0,
    }
    assert (two["name"], two["ready"], two["busy_share"]) == ("cpu#1", False, 1.0)
    assert two["state"] is None  # another process has it


@pytest.mark.parametrize(
    ("counts", "share", "wanted"),
    [
        ({"1.0": 10, "2.0": 10, "+Inf": 10}, 0.5, 0.5),
        ({"1.0": 0, "2.0": 10, "+Inf": 10}, 0.5, 1.5),
        ({"1.0": 5, "2.0": 10, "+Inf": 10}, 0.5, 1.0),
        ({"1.0": 50, "2.0": 100, "+Inf": 100}, 0.99, 1.98),
        ({"1.0": 0, "2.0": 0, "+Inf": 4}, 0.5, 2.0),  # beyond the last bound
        ({"1.0": 0, "2.0": 0, "+Inf": 0}, 0.5, None),
        ({}, 0.5, None),
    ],
)
def test_quantiles_are_interpolated(
    counts: dict[str, float], share: float, wanted: float | None
) -> None:
    found = quantile(share, {(bound,): count for bound, count in counts.items()})
    assert found == (None if wanted is None else pytest.approx(wanted))


async def test_a_retired_model_is_left_out() -> None:
    metrics = Metrics()
    for model in (DIGITS, ModelId("other", 1)):
        served(metrics, model)
        metrics.model(model).outcome("ok")
    metrics.remove_model(DIGITS)
    found = await between(metrics, lambda: None, 1.0)
    assert [(each["name"], each["version"]) for each in found["models"]] == [("other", 1)]


async def test_totals_of_a_version_outlive_it() -> None:
    metrics = Metrics()
    served(metrics, DIGITS)
    model = metrics.model(DIGITS)
    for seconds in (0.0003, 0.002, 0.0021, 99.0):
        model.request(seconds, 0.0, seconds, computed=True)
    model.request(0.00001, 0.0, 0.0, computed=False)
    for _ in range(2):
        model.count_failure(0.5)
    model.outcome("ok", 5)
    model.outcome("backend_failed", 2)
    metrics.remove_model(DIGITS)
    now = await metrics.read(read)
    assert totals(now, [DIGITS, ModelId("other", 1)]) == [
        {
            "name": "digits",
            "version": 3,
            "requests": 7,
            "failed": 2,
            "failed_items": {"backend_failed": 2},
            "latency_ms": {"0.4": 1, "2.5": 2, "inf": 1},
        }
    ]


async def test_failed_device_reading_is_null() -> None:
    metrics = Metrics()
    metrics.device("cuda:0", {"memory_bytes": lambda: 8e9, "temperature_celsius": lambda: math.nan})
    (device,) = (await between(metrics, lambda: None, 1.0))["devices"]
    assert device == {
        "name": "cuda:0",
        "memory_used_bytes": None,
        "memory_bytes": 8e9,
        "temperature_celsius": None,
        "utilization_ratio": None,
    }
