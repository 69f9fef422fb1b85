"""What is counted of requests and models, and what a scrape asks for."""

from __future__ import annotations

import threading

import pytest

from app.metrics import Metrics
from app.metrics.gauges import ServedModel
from app.types import ModelId

MODEL = ModelId("double", 3)


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (200, "ok", "ok"),
        (422, "invalid_input", "client_error"),
        (499, "abandoned", "client_error"),
        (500, "backend_failed", "server_error"),
        (503, "overloaded", "server_error"),
    ],
)
def test_requests_are_counted_by_code_and_timed_by_outcome(
    status: int, code: str, outcome: str
) -> None:
    metrics = Metrics()
    metrics.request("/predict", status, code).count(0.003)
    metrics.request("/predict", status, code).count(0.004)
    labels = {"route": "/predict", "status": str(status), "code": code}
    assert sample(metrics, "torchlane_requests_total", **labels) == 2
    timed = {"route": "/predict", "outcome": outcome}
    assert sample(metrics, "torchlane_request_seconds_count", **timed) == 2
    total_s = sample(metrics, "torchlane_request_seconds_sum", **timed)
    assert total_s == pytest.approx(0.007)
    assert sample(metrics, "torchlane_request_seconds_bucket", **timed, le="0.0025") == 0
    assert sample(metrics, "torchlane_request_seconds_bucket", **timed, le="0.005") == 2


def test_retired_model_leaves_no_series() -> None:
    metrics = Metrics()
    ready = False
    served = [ServedModel(MODEL, "plan", "float32")]
    metrics.watch(lambda: ready, lambda: served)
    labels = {"model": "double", "version": "3", "variant": "plan", "precision": "float32"}
    assert sample(metrics, "torchlane_model_info", **labels) == 1
    assert sample(metrics, "torchlane_ready") == 0
    served.clear()
    ready = True
    assert sample(metrics, "torchlane_model_info", **labels) is None
    assert sample(metrics, "torchlane_ready") == 1


def test_every_gauge_has_a_multiprocess_mode() -> None:
    metrics = Metrics()
    assert metrics.gauges
    for gauge in metrics.gauges.values():
        mode = gauge._multiprocess_mode  # there is no public way to ask
        assert mode in {"livesum", "livemin", "livemax"}, gauge


def test_work_of_a_replica_adds_up() -> None:
    metrics = Metrics()
    metrics.batches_of("cpu#0", "cpu").count_batch(3, busy_s=0.5, compute_s=0.25)
    metrics.batches_of("cpu#0", "cpu").count_batch(5, busy_s=0.25, compute_s=0.125)
    metrics.batches_of("cpu#1", "cpu").count_batch(1, busy_s=9.0, compute_s=9.0)
    labels = {"replica": "cpu#0", "device": "cpu"}
    assert sample(metrics, "torchlane_replica_batches_total", **labels) == 2
    assert sample(metrics, "torchlane_replica_items_total", **labels) == 8
    assert sample(metrics, "torchlane_replica_busy_seconds_total", **labels) == 0.75
    assert sample(metrics, "torchlane_replica_compute_seconds_total", **labels) == 0.375


def test_device_is_read_at_each_scrape() -> None:
    metrics, degrees = Metrics(), [60.0]
    metrics.device("cuda:0", {"temperature_celsius": lambda: degrees[0]})
    name = "torchlane_device_temperature_celsius"
    assert sample(metrics, name, device="cuda:0") == 60
    degrees[0] = 61.0
    assert sample(metrics, name, device="cuda:0") == 61
    used = metrics.registry.get_sample_value(
        "torchlane_device_memory_used_bytes", {"device": "cuda:0"}
    )
    assert used is None  # a reading without an answer is missing


async def test_drivers_are_read_in_another_thread() -> None:
    metrics, threads = Metrics(), []

    def reading() -> float:
        threads.append(threading.current_thread())
        return 60.0

    metrics.device("cuda:0", {"temperature_celsius": reading})
    threads.clear()
    await metrics.scraped()
    assert threads[0] is not threading.main_thread()
