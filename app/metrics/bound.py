"""Metrics whose labels are bound once: a label lookup costs a microsecond on the hot path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Counter
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from app.metrics.counters import (
    BATCH_SIZES,
    LATENCIES,
    ROUND_TRIPS,
    SECONDS,
    BulkHistogram,
    Counters,
)
from app.metrics.tally import HistogramTally, Tally, TotalTally
from app.types import NO_DEVICE_TIMES, CacheCounts, DeviceTimes, ModelId


class Tallies(Collector):
    """All tallies of a process; it flushes them whenever metrics are collected."""

    def __init__(self) -> None:
        self._all: list[Tally | TotalTally | HistogramTally] = []

    def counter(self, counter: Counter) -> Tally:
        """A tally for a counter."""
        tally = Tally(counter.inc)
        self._all.append(tally)
        return tally

    def total(self, counter: Counter, total: Callable[[], int]) -> None:
        """Let a counter follow a total that is kept elsewhere."""
        self._all.append(TotalTally(total, counter.inc))

    def histogram(self, histogram: BulkHistogram, bounds: Sequence[float]) -> HistogramTally:
        """A tally for a histogram."""
        tally = HistogramTally(bounds, histogram.add)
        self._all.append(tally)
        return tally

    def flush(self) -> None:
        """Bring the metrics up to date."""
        for tally in self._all:
            tally.flush()

    def collect(self) -> Iterator[Metric]:
        """Flush all tallies; yields no metrics of its own."""
        self.flush()
        return iter(())


def labels_of(model: ModelId) -> tuple[str, str]:
    """The values of `LABELS`."""
    return model.name, str(model.version)


class RequestMetrics:
    """The metrics of requests with one result, bound once."""

    def __init__(
        self, counters: Counters, tallies: Tallies, route: str, status: int, code: str
    ) -> None:
        outcome = "ok" if status < 400 else "client_error" if status < 500 else "server_error"
        self._count = tallies.counter(counters.requests.labels(route, str(status), code))
        self._seconds = tallies.histogram(counters.request_seconds.labels(route, outcome), SECONDS)

    def count(self, seconds: float, trace_id: str = "") -> None:
        """Count a request that took this many seconds."""
        self._count.amount += 1
        self._seconds.observe(seconds, trace_id)


class ModelMetrics:
    """One model's metrics, bound once."""

    def __init__(self, counters: Counters, tallies: Tallies, model: ModelId) -> None:
        labels = labels_of(model)
        self._counters, self._tallies, self._labels = counters, tallies, labels
        self._outcomes: dict[str, Tally] = {}  # a series exists after its first count
        self._shared_tallies: dict[str, Tally] = {}
        self.computed = tallies.counter(counters.items_computed.labels(*labels))
        self.batch_size = tallies.histogram(counters.batch_size.labels(*labels), BATCH_SIZES)
        self.queue_seconds = tallies.histogram(counters.queue_seconds.labels(*labels), SECONDS)
        self.compute_seconds = tallies.histogram(counters.compute_seconds.labels(*labels), SECONDS)
        self.splits = tallies.counter(counters.batch_splits.labels(*labels))
        self.out_of_memory = tallies.counter(counters.out_of_memory.labels(*labels))
        self.moved = tallies.counter(counters.items_moved.labels(*labels))
        self._hit, self._miss, self._joined = (
            tallies.counter(counters.cache_lookups.labels(*labels, result))
            for result in ("hit", "miss", "joined")
        )

        self._requests_computed, self._requests_cached, self._requests_failed = (
            tallies.counter(counters.model_requests.labels(*labels, result))
            for result in ("computed", "cached", "failed")
        )
        self._ok_s, self._failed_s, self._queue_s, self._compute_s = (
            tallies.counter(counters.model_request_seconds.labels(*labels, part))
            for part in ("ok", "failed", "queue", "compute")
        )
        latency = counters.model_latency_seconds.labels(*labels)
        self._latency = tallies.histogram(latency, LATENCIES)

    def count_lookups(self, counts: CacheCounts) -> None:
        """Count a request's items by the result of their lookup in the cache and in flight."""
        hit, miss, joined = counts
        self._hit.amount += hit
        self._miss.amount += miss
        self._joined.amount += joined

    def request(self, seconds: float, queue_s: float, compute_s: float, *, computed: bool) -> None:
        """Count a request without a failure."""
        if computed:
            self._requests_computed.amount += 1
            self._latency.observe(seconds)
        else:
            self._requests_cached.amount += 1
        self._ok_s.amount += seconds
        self._queue_s.amount += queue_s
        self._compute_s.amount += compute_s

    def count_failure(self, seconds: float) -> None:
        """Count a request that failed, at least in part."""
        self._requests_failed.inc()
        self._failed_s.inc(seconds)

    def count_shared(self, result: str, amount: int = 1) -> None:
        """Count items by the result of the shared cache."""
        tally = self._shared_tallies.get(result)
        if tally is None:
            series = self._counters.shared_cache_lookups.labels(*self._labels, result)
            tally = self._shared_tallies[result] = self._tallies.counter(series)
        tally.inc(amount)

    def outcome(self, outcome: str, amount: int = 1) -> None:
        """Count items by outcome: 'ok', an error code, or 'abandoned'."""
        tally = self._outcomes.get(outcome)
        if tally is None:
            series = self._counters.items.labels(*self._labels, outcome)
            tally = self._outcomes[outcome] = self._tallies.counter(series)
        tally.amount += amount


class SharedCacheMetrics:
    """The metrics of the connections to the shared cache, bound once."""

    def __init__(self, counters: Counters, tallies: Tallies) -> None:
        self.seconds = tallies.histogram(counters.shared_cache_seconds, ROUND_TRIPS)
        self.stored, self.dropped, self.failed = (
            tallies.counter(counters.shared_cache_writes.labels(result))
            for result in ("stored", "dropped", "error")
        )


class KeyMetrics:
    """The metrics of one API key name, bound once."""

    def __init__(self, counters: Counters, tallies: Tallies, name: str) -> None:
        self.admitted, self.rate_limited, self.forbidden = (
            tallies.counter(counters.key_requests.labels(name, result))
            for result in ("admitted", "rate_limited", "forbidden")
        )
        self.items = tallies.counter(counters.key_items.labels(name))


class ReplicaMetrics:
    """One replica's metrics, bound once."""

    def __init__(self, counters: Counters, tallies: Tallies, name: str, device: str) -> None:
        self._batches = tallies.counter(counters.replica_batches.labels(name, device))
        self._items = tallies.counter(counters.replica_items.labels(name, device))
        self._busy_s = tallies.counter(counters.replica_busy_seconds.labels(name, device))
        self._compute_s = tallies.counter(counters.replica_compute_seconds.labels(name, device))
        self._device_s = [
            tallies.counter(counters.replica_device_seconds.labels(name, device, stage))
            for stage in ("copy_in", "compute", "copy_out")
        ]

    def count_batch(
        self,
        items: int,
        busy_s: float,
        compute_s: float,
        device: DeviceTimes = NO_DEVICE_TIMES,
    ) -> None:
        """Count a batch that has ended.

        `busy_s` counts from when the replica got it, or finished the previous batch; `compute_s`
        are the seconds in the backend.
        """
        self._batches.amount += 1
        self._items.amount += items
        self._busy_s.amount += busy_s
        self._compute_s.amount += compute_s
        if device.compute_s:
            for tally, seconds in zip(self._device_s, device, strict=True):
                tally.inc(seconds)
