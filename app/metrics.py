"""What is counted. Recorded where it happens; written out by GET /metrics."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from app.types import CacheCounts, ModelId

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
LABELS = ("model", "version")


class Metrics:
    """All metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        # A _created series beside every series would double what is scraped.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "torchlane_requests",
            "Finished requests for predictions, by route, status and code ('ok', or the error's).",
            ("route", "status", "code"),
            registry=self.registry,
        )
        self.items = Counter(
            "torchlane_items",
            "Items by outcome: 'ok', an error code, or 'abandoned' when their caller went away.",
            (*LABELS, "outcome"),
            registry=self.registry,
        )
        self.items_computed = Counter(
            "torchlane_items_computed",
            "Unique items that went through the model.",
            LABELS,
            registry=self.registry,
        )
        self.batch_size = Histogram(
            "torchlane_batch_size",
            "Items per batch.",
            LABELS,
            buckets=BATCH_SIZES,
            registry=self.registry,
        )
        self.queue_seconds = Histogram(
            "torchlane_queue_seconds",
            "Seconds from acceptance to the start of the batch, per computed item.",
            LABELS,
            buckets=SECONDS,
            registry=self.registry,
        )
        self.compute_seconds = Histogram(
            "torchlane_compute_seconds",
            "Seconds in the backend, per batch.",
            LABELS,
            buckets=SECONDS,
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "torchlane_queue_depth_items",
            "Items that wait for a batch.",
            LABELS,
            registry=self.registry,
        )
        self.cache_lookups = Counter(
            "torchlane_cache_lookups",
            "Items by how they were answered: 'hit', 'miss' or 'joined' (a computation in flight).",
            (*LABELS, "result"),
            registry=self.registry,
        )
        self.cache_bytes = Gauge(
            "torchlane_cache_bytes", "Real bytes in the prediction cache.", registry=self.registry
        )
        self.cache_entries = Gauge(
            "torchlane_cache_entries", "Entries in the prediction cache.", registry=self.registry
        )
        self.batch_splits = Counter(
            "torchlane_batch_splits",
            "Batches that failed as a whole and were split.",
            LABELS,
            registry=self.registry,
        )
        self.items_moved = Counter(
            "torchlane_items_moved",
            "Items moved to another replica after theirs failed.",
            LABELS,
            registry=self.registry,
        )
        self.tasks = Gauge(
            "torchlane_event_loop_tasks", "Unfinished asyncio tasks.", registry=self.registry
        )
        self.replica_ready = Gauge(
            "torchlane_replica_ready",
            "1 while the replica takes work, else 0.",
            ("replica", "device"),
            registry=self.registry,
        )

        ProcessCollector(registry=self.registry)  # memory, CPU, file descriptors

    @functools.cache  # noqa: B019  # one Metrics per process, few models
    def model(self, model: ModelId) -> ModelMetrics:
        """The metrics of one model, looked up once."""
        return ModelMetrics(self, model)

    def replica(self, name: str, device: str, is_ready: Callable[[], bool]) -> None:
        """Show whether a replica takes work; asked when it is scraped."""
        self.replica_ready.labels(name, device).set_function(lambda: float(is_ready()))

    @functools.cache  # noqa: B019  # one Metrics per process, few combinations
    def request(self, route: str, status: int, code: str) -> Counter:
        """The counter of requests that ended so, looked up once."""
        return self.requests.labels(route, str(status), code)

    def exposition(self) -> bytes:
        """Everything, in the Prometheus text format; called on the event loop."""
        self.tasks.set(len(asyncio.all_tasks()))
        return generate_latest(self.registry)


class ModelMetrics:
    """One model's metrics, bound once: a label look-up costs a microsecond on the hot path."""

    def __init__(self, metrics: Metrics, model: ModelId) -> None:
        labels = (model.name, str(model.version))
        self._items = functools.cache(lambda outcome: metrics.items.labels(*labels, outcome))
        self.computed = metrics.items_computed.labels(*labels)
        self.batch_size = metrics.batch_size.labels(*labels)
        self.queue_seconds = metrics.queue_seconds.labels(*labels)
        self.compute_seconds = metrics.compute_seconds.labels(*labels)
        self.queue_depth = metrics.queue_depth.labels(*labels)
        self.splits = metrics.batch_splits.labels(*labels)
        self.moved = metrics.items_moved.labels(*labels)
        self._hit = metrics.cache_lookups.labels(*labels, "hit")
        self._miss = metrics.cache_lookups.labels(*labels, "miss")
        self._joined = metrics.cache_lookups.labels(*labels, "joined")

    def looked_up(self, counts: CacheCounts) -> None:
        """A request's items were looked up in the cache and among the flights."""
        for counter, amount in (
            (self._hit, counts.hit),
            (self._miss, counts.miss),
            (self._joined, counts.joined),
        ):
            if amount:
                counter.inc(amount)

    def outcome(self, outcome: str, amount: int = 1) -> None:
        """Items of a request have ended: 'ok', an error code, or 'abandoned'."""
        self._items(outcome).inc(amount)
