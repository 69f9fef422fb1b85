"""Gauges, which are read at each scrape, and the served models.

The mode of a gauge determines how app/processes/shared_metrics.py merges the values of several
processes. With one process it has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.metrics.counters import LABELS, REPLICA_LABELS
from app.types import ModelId

PREFIX = "torchlane_"
MODEL_INFO = "torchlane_model_info"
Mode: TypeAlias = Literal["livesum", "livemax", "livemin"]
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model: its variant (`plan` if several share the work) and precision."""

    model: ModelId
    variant: str
    precision: str


class ModelGauges(NamedTuple, Generic[T_co]):
    """One value for each gauge of a model, such as the function that reads it."""

    waiting: T_co
    queue_limit: T_co
    replicas: T_co
    waiting_bytes: T_co
    queue_limit_bytes: T_co
    predicted_wait_s: T_co
    cold: T_co


class GaugeSpec(NamedTuple):
    """One gauge.

    Attributes:
        name: the name without the prefix.
        mode: how the values of several processes are merged.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()
    mode: Mode = "livesum"


# A model has these gauges while it is served.
OF_MODELS = ModelGauges(
    waiting=GaugeSpec("queue_depth_items", "Items that wait for a batch.", LABELS),
    queue_limit=GaugeSpec("queue_limit_items", "Items that may wait; more are rejected.", LABELS),
    replicas=GaugeSpec("model_replicas", "Replicas that serve the model now.", LABELS),
    waiting_bytes=GaugeSpec("queue_bytes", "Bytes of the items that wait for a batch.", LABELS),
    queue_limit_bytes=GaugeSpec(
        "queue_limit_bytes", "Bytes that waiting items may have; more are rejected.", LABELS
    ),
    predicted_wait_s=GaugeSpec(
        "predicted_wait_seconds",
        "Seconds that a request arriving now is expected to wait for its batch.",
        LABELS,
        "livemax",
    ),
    cold=GaugeSpec(
        "model_cold", "Processes that have not loaded the model, which is on demand.", LABELS
    ),
)
MODEL_GAUGES = frozenset(PREFIX + each.name for each in OF_MODELS)
OF_DEVICES = {
    "memory_used_bytes": "Bytes of the device's memory in use by any process.",
    "memory_bytes": "Total bytes of the device's memory.",
    "temperature_celsius": "Temperature of the device.",
    "utilization_ratio": "Share of recent time in which the device computed.",
}


class Gauges:
    """Gauges in a registry, by name without the prefix and the unit.

    Attributes:
        gauges: all gauges, by full name.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.gauges: dict[str, Gauge] = {}

        def gauge(
            name: str, text: str, labels: Sequence[str] = (), mode: Mode = "livesum"
        ) -> Gauge:
            new_gauge = Gauge(
                PREFIX + name, text, labels, registry=registry, multiprocess_mode=mode
            )
            self.gauges[PREFIX + name] = new_gauge
            return new_gauge

        self.requests_in_flight = gauge(
            "requests_in_flight", "Requests for predictions that have no answer yet."
        )
        self.cache_bytes = gauge("cache_bytes", "Bytes in the prediction cache, with overhead.")
        self.cache_entries = gauge("cache_entries", "Entries in the prediction cache.")
        self.cache_limit = gauge("cache_limit_bytes", "Bytes that the prediction cache may take.")
        self.shared_cache_open = gauge(
            "shared_cache_open",
            "1 while the shared cache is not queried, because it fails or is unreachable, else 0.",
            (),
            "livemax",
        )
        self.model_memory = gauge(
            "model_memory_bytes", "Bytes by which loading the models made the processes grow."
        )
        self.model_memory_limit = gauge(
            "model_memory_limit_bytes", "Bytes that models may take before some are unloaded."
        )
        self.bodies_bytes = gauge(
            "bodies_bytes",
            "Bytes of bodies that are still arriving, without the first 64 KiB of each.",
        )
        self.bodies_limit = gauge(
            "bodies_limit_bytes", "Bytes that arriving bodies may take; more are rejected."
        )
        self.answers_bytes = gauge(
            "answers_bytes",
            "Bytes of answers that are expected or not sent yet, without the first 64 KiB of each.",
        )
        self.answers_limit = gauge(
            "answers_limit_bytes", "Bytes that such answers may take; more are rejected."
        )
        self.offloaded = gauge(
            "offloaded_requests", "Requests that wait for a thread to decode them, or are in one."
        )
        self.tasks = gauge("event_loop_tasks", "Unfinished asyncio tasks.")
        self.replica_ready = gauge(
            "replica_ready", "1 while the replica accepts work, else 0.", REPLICA_LABELS, "livemax"
        )
        self.ready = gauge("ready", "1 while GET /health/ready answers 200, else 0.", (), "livemin")
        self.models_unready = gauge(
            "models_unready",
            "Models that should answer but do not; GET /models shows why.",
            (),
            "livemax",
        )
        self.versions_changed = gauge(
            "versions_changed",
            "Versions whose files were changed after they were loaded; GET /models shows them.",
            (),
            "livemax",
        )
        self.model_folders_unreadable = gauge(
            "model_folders_unreadable",
            "Folders of models that cannot be read; GET /models shows why.",
            (),
            "livemax",
        )
        self.source_age = gauge(
            "source_age_seconds",
            "Seconds since the store of models was last seen whole; 0 with a folder of models.",
            (),
            "livemax",
        )
        self.models_file_wrong = gauge(
            "models_file_wrong",
            "1 while the models file is invalid and its last valid content applies, else 0.",
            (),
            "livemax",
        )
        self.release_share = gauge(
            "release_share",
            "Share of the requests that name no version which a release gives its new version, 0 "
            "to 1; 0 once the models file has no release to it.",
            LABELS,
            "livemax",
        )
        self.release_rolled_back = gauge(
            "release_rolled_back",
            "1 while a release to this version is rolled back, else 0.",
            LABELS,
            "livemax",
        )
        self.build_info = gauge(
            "build_info",
            "Always 1; the labels describe the build, `compiled` whether mypyc compiled it.",
            ("version", "torch", "python", "compiled"),
            "livemax",
        )
        self.of_devices = {
            name: gauge(f"device_{name}", text, ("device",), "livemax")
            for name, text in OF_DEVICES.items()
        }
        self.of_models = ModelGauges(*(gauge(*each) for each in OF_MODELS))


class ModelInfoCollector(Collector):
    """Reads the served models at every scrape: a retired version leaves no series behind."""

    def __init__(self) -> None:
        self.models: Callable[[], Iterable[ServedModel]] = tuple

    def collect(self) -> Iterator[Metric]:
        """One series per served model."""
        family = GaugeMetricFamily(
            MODEL_INFO,
            "Always 1; the labels describe the served models.",
            labels=(*LABELS, "variant", "precision"),
        )
        for each in self.models():
            labels = (each.model.name, str(each.model.version), each.variant, each.precision)
            family.add_metric(labels, 1.0)
        yield family
