"""What is asked when somebody scrapes: gauges, and what is served.

Each gauge says how those of several processes make one (`multiprocess_mode`);
app/processes/shared_metrics.py does that. With one process the mode means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.metrics.counters import LABELS, REPLICA_LABELS
from app.types import ModelId

MODEL_INFO = "torchlane_model_info"
# What only a version that is served has.
MODEL_GAUGES = frozenset(
    (
        "torchlane_queue_depth_items",
        "torchlane_queue_limit_items",
        "torchlane_model_replicas",
        "torchlane_queue_bytes",
        "torchlane_queue_limit_bytes",
        "torchlane_predicted_wait_seconds",
    )
)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is served of a model: one variant (`plan` where several take turns), one precision."""

    model: ModelId
    variant: str
    precision: str


class ModelGauges(NamedTuple):
    """What a model's gauges show, in their order."""

    waiting: Callable[[], float]
    queue_limit: Callable[[], float]
    replicas: Callable[[], float]
    waiting_bytes: Callable[[], float]
    queue_limit_bytes: Callable[[], float]
    predicted_wait_s: Callable[[], float]


class Gauges:
    """Gauges in a registry, by their names without the prefix and the unit."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests_in_flight = Gauge(
            "torchlane_requests_in_flight",
            "Requests for predictions that have no answer yet.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.queue_depth = Gauge(
            "torchlane_queue_depth_items",
            "Items that wait for a batch.",
            LABELS,
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.queue_limit = Gauge(
            "torchlane_queue_limit_items",
            "Items that may wait; more are refused.",
            LABELS,
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.queue_bytes = Gauge(
            "torchlane_queue_bytes",
            "Bytes of the items that wait for a batch.",
            LABELS,
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.queue_limit_bytes = Gauge(
            "torchlane_queue_limit_bytes",
            "Bytes that waiting items may have; more are refused.",
            LABELS,
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.predicted_wait = Gauge(
            "torchlane_predicted_wait_seconds",
            "Seconds that a request which came now would wait for its batch, as foreseen.",
            LABELS,
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.cache_bytes = Gauge(
            "torchlane_cache_bytes",
            "Real bytes in the prediction cache.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.cache_entries = Gauge(
            "torchlane_cache_entries",
            "Entries in the prediction cache.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.cache_limit = Gauge(
            "torchlane_cache_limit_bytes",
            "Bytes that the prediction cache may take.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.bodies_bytes = Gauge(
            "torchlane_bodies_bytes",
            "Bytes of bodies that are still on their way, without the first 64 KiB of each.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.bodies_limit = Gauge(
            "torchlane_bodies_limit_bytes",
            "Bytes that they may take; more are refused.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.tasks = Gauge(
            "torchlane_event_loop_tasks",
            "Unfinished asyncio tasks.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.replica_ready = Gauge(
            "torchlane_replica_ready",
            "1 while the replica takes work, else 0.",
            REPLICA_LABELS,
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.model_replicas = Gauge(
            "torchlane_model_replicas",
            "Replicas that serve the model now.",
            LABELS,
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.ready = Gauge(
            "torchlane_ready",
            "1 while GET /health/ready says so, else 0.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self.models_unready = Gauge(
            "torchlane_models_unready",
            "Models that should answer and do not; GET /models says why.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.models_file_wrong = Gauge(
            "torchlane_models_file_wrong",
            "1 while the models file has mistakes, so that what it said before holds, else 0.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.build_info = Gauge(
            "torchlane_build_info",
            "Always 1; the labels say what runs, `compiled` whether it is made as machine code.",
            ("version", "torch", "python", "compiled"),
            registry=registry,
            multiprocess_mode="livemax",
        )
        of_device = {
            "memory_used_bytes": "Bytes of the device's memory that are in use, by whomever.",
            "memory_bytes": "Bytes of memory that the device has.",
            "temperature_celsius": "Temperature of the device.",
            "utilization_ratio": "Share of the last moments in which the device computed.",
        }
        self.of_devices = {
            name: Gauge(
                f"torchlane_device_{name}",
                text,
                ("device",),
                registry=registry,
                multiprocess_mode="livemax",
            )
            for name, text in of_device.items()
        }
        self.of_models = (
            self.queue_depth,
            self.queue_limit,
            self.model_replicas,
            self.queue_bytes,
            self.queue_limit_bytes,
            self.predicted_wait,
        )


class ModelInfo(Collector):
    """Asks what is served at every scrape: a version that has left leaves no series behind."""

    def __init__(self) -> None:
        self.models: Callable[[], Iterable[ServedModel]] = tuple

    def collect(self) -> Iterator[Metric]:
        """One series per served model."""
        family = GaugeMetricFamily(
            MODEL_INFO,
            "Always 1; the labels say what is served of each model.",
            labels=(*LABELS, "variant", "precision"),
        )
        for each in self.models():
            labels = (each.model.name, str(each.model.version), each.variant, each.precision)
            family.add_metric(labels, 1.0)
        yield family
