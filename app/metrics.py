"""What is counted. Recorded where it happens; written out by GET /metrics.

Each gauge says how those of several processes make one (`multiprocess_mode`);
app/processes/shared_metrics.py does that. With one process the mode means nothing.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from app.tallies import HistogramTally, Tally
from app.types import CacheCounts, ModelId

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
LABELS = ("model", "version")
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
MOST_KEY_NAMES = 1000  # that have series of their own: names may come and go for years
OTHER_KEYS = "(other)"  # no key can be named so


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


class Metrics:
    """All metrics of one process, in a registry of their own.

    Attributes:
        requests_open: requests for predictions without an answer; counted by who answers them.
    """

    def __init__(self) -> None:
        self.requests_open = 0
        # A _created series beside every series would double what is scraped.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._tallies = _Tallies()
        self.registry.register(self._tallies)  # the first: what it hands over is then collected
        self.requests = Counter(
            "torchlane_requests",
            "Finished requests for predictions, by route, status and code ('ok', or the error's).",
            ("route", "status", "code"),
            registry=self.registry,
        )
        self.request_seconds = _BulkHistogram(
            "torchlane_request_seconds",
            "Seconds from a request's head to the last byte of its answer, by route and outcome "
            "('ok', 'client_error' below status 500, 'server_error' from there).",
            ("route", "outcome"),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.requests_in_flight = Gauge(
            "torchlane_requests_in_flight",
            "Requests for predictions that have no answer yet.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.requests_in_flight.set_function(lambda: self.requests_open)
        self.connections_cut = Counter(
            "torchlane_connections_cut",
            "Connections that were closed for what came over them, or did not, by code.",
            ("code",),
            registry=self.registry,
        )
        self.key_requests = Counter(
            "torchlane_key_requests",
            "Requests by the name of their API key and what became of them at the door: "
            "'admitted', 'rate_limited' or 'forbidden'.",
            ("key", "result"),
            registry=self.registry,
        )
        self.key_items = Counter(
            "torchlane_key_items",
            "Items that were asked for, by the name of the API key.",
            ("key",),
            registry=self.registry,
        )
        self._key_names: set[str] = set()
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
        self.batch_size = _BulkHistogram(
            "torchlane_batch_size",
            "Items per batch.",
            LABELS,
            buckets=BATCH_SIZES,
            registry=self.registry,
        )
        self.queue_seconds = _BulkHistogram(
            "torchlane_queue_seconds",
            "Seconds from acceptance to the start of the batch, per computed item.",
            LABELS,
            buckets=SECONDS,
            registry=self.registry,
        )
        self.compute_seconds = _BulkHistogram(
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
            multiprocess_mode="livesum",
        )
        self.queue_limit = Gauge(
            "torchlane_queue_limit_items",
            "Items that may wait; more are refused.",
            LABELS,
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.queue_bytes = Gauge(
            "torchlane_queue_bytes",
            "Bytes of the items that wait for a batch.",
            LABELS,
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.queue_limit_bytes = Gauge(
            "torchlane_queue_limit_bytes",
            "Bytes that waiting items may have; more are refused.",
            LABELS,
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.predicted_wait = Gauge(
            "torchlane_predicted_wait_seconds",
            "Seconds that a request which came now would wait for its batch, as foreseen.",
            LABELS,
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self.cache_lookups = Counter(
            "torchlane_cache_lookups",
            "Items by how they were answered: 'hit', 'miss' or 'joined' (a computation in flight).",
            (*LABELS, "result"),
            registry=self.registry,
        )
        self.cache_bytes = Gauge(
            "torchlane_cache_bytes",
            "Real bytes in the prediction cache.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.cache_entries = Gauge(
            "torchlane_cache_entries",
            "Entries in the prediction cache.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.cache_limit = Gauge(
            "torchlane_cache_limit_bytes",
            "Bytes that the prediction cache may take.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.bodies_bytes = Gauge(
            "torchlane_bodies_bytes",
            "Bytes of bodies that are still on their way, without the first 64 KiB of each.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.bodies_limit = Gauge(
            "torchlane_bodies_limit_bytes",
            "Bytes that they may take; more are refused.",
            registry=self.registry,
            multiprocess_mode="livesum",
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
        self.out_of_memory = Counter(
            "torchlane_out_of_memory",
            "Batches that did not fit into a device's memory: are split, smaller ones cut.",
            LABELS,
            registry=self.registry,
        )
        self.replica_faults = Counter(
            "torchlane_replica_faults",
            "Replicas that broke, by kind: 'error', 'hung' or 'lost' (with its device).",
            ("replica", "device", "kind"),
            registry=self.registry,
        )
        self.model_loads = Counter(
            "torchlane_model_loads",
            "Versions by what became of them: 'loaded', 'failed' or 'retired'.",
            (*LABELS, "result"),
            registry=self.registry,
        )
        self.tasks = Gauge(
            "torchlane_event_loop_tasks",
            "Unfinished asyncio tasks.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.replica_ready = Gauge(
            "torchlane_replica_ready",
            "1 while the replica takes work, else 0.",
            ("replica", "device"),
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self.model_replicas = Gauge(
            "torchlane_model_replicas",
            "Replicas that serve the model now.",
            LABELS,
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.ready = Gauge(
            "torchlane_ready",
            "1 while GET /health/ready says so, else 0.",
            registry=self.registry,
            multiprocess_mode="livemin",
        )
        self.build_info = Gauge(
            "torchlane_build_info",
            "Always 1; the labels say what runs, `compiled` whether it is made as machine code.",
            ("version", "torch", "python", "compiled"),
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self._of_models = (
            self.queue_depth,
            self.queue_limit,
            self.model_replicas,
            self.queue_bytes,
            self.queue_limit_bytes,
            self.predicted_wait,
        )
        self._model_info = _ModelInfo()
        self.registry.register(self._model_info)
        ProcessCollector(registry=self.registry)  # memory, CPU, file descriptors

    @functools.cache  # noqa: B019  # one Metrics per process, few models
    def model(self, model: ModelId) -> ModelMetrics:
        """The metrics of one model, looked up once."""
        return ModelMetrics(self, self._tallies, model)

    def served(self, model: ModelId, gauges: ModelGauges) -> None:
        """Show what is asked of a model when it is scraped."""
        for gauge, value in zip(self._of_models, gauges, strict=True):
            gauge.labels(*_labels(model)).set_function(value)

    def retired(self, model: ModelId) -> None:
        """Show that no more; what was counted of it stays."""
        for gauge in self._of_models:
            gauge.remove(*_labels(model))

    def load_ended(self, model: ModelId, result: str) -> None:
        """Count what became of a version: 'loaded', 'failed' or 'retired'."""
        self.model_loads.labels(*_labels(model), result).inc()

    def key(self, name: str) -> KeyMetrics:
        """The metrics of callers with a key of this name; names beyond the first many share one."""
        if name not in self._key_names:
            if len(self._key_names) >= MOST_KEY_NAMES:
                return self._key(OTHER_KEYS)
            self._key_names.add(name)
        return self._key(name)

    @functools.cache  # noqa: B019  # one Metrics per process, few names
    def _key(self, name: str) -> KeyMetrics:
        return KeyMetrics(self, self._tallies, name)

    def replica(self, name: str, device: str, is_ready: Callable[[], bool]) -> None:
        """Show whether a replica takes work; asked when it is scraped."""
        self.replica_ready.labels(name, device).set_function(lambda: float(is_ready()))

    def watch(
        self, is_ready: Callable[[], bool], models: Callable[[], Iterable[ServedModel]]
    ) -> None:
        """Show readiness and what is served; both are asked when it is scraped."""
        self.ready.set_function(lambda: float(is_ready()))
        self._model_info.models = models

    @functools.cache  # noqa: B019  # one Metrics per process, few combinations
    def request(self, route: str, status: int, code: str) -> RequestMetrics:
        """The metrics of requests that ended so, looked up once."""
        return RequestMetrics(self, self._tallies, route, status, code)

    async def scraped(self) -> bytes:
        """What GET /metrics answers, in the Prometheus text format; called on the event loop."""
        self.tasks.set(len(asyncio.all_tasks()))
        return generate_latest(self.registry)

    def open(self) -> None:
        """Be ready for scrapes; called on the event loop. One process needs nothing for that."""

    def close(self) -> None:
        """The event loop is about to end."""
        self._tallies.flush()


class _BulkHistogram(Histogram):
    """A histogram that takes many observations at once."""

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add so many observations to each bucket, which come to `total`."""
        self._sum.inc(total)
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)


class _Tallies(Collector):
    """All tallies of a process; whenever metrics are collected, it brings these up to date."""

    def __init__(self) -> None:
        self._all: list[Tally | HistogramTally] = []

    def counter(self, counter: Counter) -> Tally:
        """What counts for a counter."""
        tally = Tally(counter.inc)
        self._all.append(tally)
        return tally

    def histogram(self, histogram: _BulkHistogram, bounds: Sequence[float]) -> HistogramTally:
        """What observes for a histogram."""
        tally = HistogramTally(bounds, histogram.add)
        self._all.append(tally)
        return tally

    def flush(self) -> None:
        """Bring the metrics up to date."""
        for tally in self._all:
            tally.flush()

    def collect(self) -> Iterator[Metric]:
        """Nothing of its own."""
        self.flush()
        return iter(())


class RequestMetrics:
    """The metrics of requests that ended in one way, bound once."""

    def __init__(
        self, metrics: Metrics, tallies: _Tallies, route: str, status: int, code: str
    ) -> None:
        outcome = "ok" if status < 400 else "client_error" if status < 500 else "server_error"
        self._finished = tallies.counter(metrics.requests.labels(route, str(status), code))
        self._seconds = tallies.histogram(metrics.request_seconds.labels(route, outcome), SECONDS)

    def ended(self, seconds: float) -> None:
        """One more, after so many seconds."""
        self._finished.inc()
        self._seconds.observe(seconds)


class ModelMetrics:
    """One model's metrics, bound once: a label look-up costs a microsecond on the hot path."""

    def __init__(self, metrics: Metrics, tallies: _Tallies, model: ModelId) -> None:
        labels = _labels(model)
        self._items = functools.cache(
            lambda outcome: tallies.counter(metrics.items.labels(*labels, outcome))
        )
        self.computed = tallies.counter(metrics.items_computed.labels(*labels))
        self.batch_size = tallies.histogram(metrics.batch_size.labels(*labels), BATCH_SIZES)
        self.queue_seconds = tallies.histogram(metrics.queue_seconds.labels(*labels), SECONDS)
        self.compute_seconds = tallies.histogram(metrics.compute_seconds.labels(*labels), SECONDS)
        self.splits = tallies.counter(metrics.batch_splits.labels(*labels))
        self.out_of_memory = tallies.counter(metrics.out_of_memory.labels(*labels))
        self.moved = tallies.counter(metrics.items_moved.labels(*labels))
        self._hit, self._miss, self._joined = (
            tallies.counter(metrics.cache_lookups.labels(*labels, result))
            for result in ("hit", "miss", "joined")
        )

    def looked_up(self, counts: CacheCounts) -> None:
        """A request's items were looked up in the cache and among the flights."""
        self._hit.inc(counts.hit)
        self._miss.inc(counts.miss)
        self._joined.inc(counts.joined)

    def outcome(self, outcome: str, amount: int = 1) -> None:
        """Items of a request have ended: 'ok', an error code, or 'abandoned'."""
        self._items(outcome).inc(amount)


def _labels(model: ModelId) -> tuple[str, str]:
    return model.name, str(model.version)


class KeyMetrics:
    """The metrics of one name of API keys, bound once."""

    def __init__(self, metrics: Metrics, tallies: _Tallies, name: str) -> None:
        self.admitted, self.rate_limited, self.forbidden = (
            tallies.counter(metrics.key_requests.labels(name, result))
            for result in ("admitted", "rate_limited", "forbidden")
        )
        self.items = tallies.counter(metrics.key_items.labels(name))


class _ModelInfo(Collector):
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
