"""The load between two readings of the metrics, as GET /live sends it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from prometheus_client.registry import Collector

from app.metrics.bound import labels_of
from app.metrics.counters import LABELS, REPLICA_LABELS
from app.registry.loaded_models import ModelState, VersionStatus
from app.types import ModelId

Key = tuple[str, ...]  # values of the kept labels; the series of other labels are summed
Series = Mapping[str, Mapping[Key, float]]
OK = "ok"
OUTCOME = (*LABELS, "outcome")
DEVICE_READINGS = ("memory_used_bytes", "memory_bytes", "temperature_celsius", "utilization_ratio")
# The kept labels by the names of samples, without their prefix.
KEPT: dict[str, tuple[str, ...]] = {
    "requests_total": ("code",),
    "request_seconds_bucket": ("le",),
    "requests_in_flight": (),
    "ready": (),
    "items_total": OUTCOME,
    "items_computed_total": LABELS,
    "model_requests_total": (*LABELS, "result"),
    "model_latency_seconds_bucket": (*LABELS, "le"),
    "cache_lookups_total": (*LABELS, "result"),
    "queue_depth_items": LABELS,
    "queue_limit_items": LABELS,
    "predicted_wait_seconds": LABELS,
    "replica_ready": REPLICA_LABELS,
    "replica_items_total": REPLICA_LABELS,
    "replica_busy_seconds_total": REPLICA_LABELS,
    "cache_bytes": (),
    "cache_limit_bytes": (),
    "cache_entries": (),
}
KEPT |= {
    f"{name}_{part}": LABELS
    for name in ("batch_size", "queue_seconds", "compute_seconds")
    for part in ("sum", "count")
}
KEPT |= {f"device_{name}": ("device",) for name in DEVICE_READINGS}
PREFIX = "torchlane_"


def read(collector: Collector) -> Series:
    """The series of all metrics that a snapshot uses."""
    found: dict[str, dict[Key, float]] = {name: {} for name in KEPT}
    for family in collector.collect():
        for sample in family.samples:
            name = sample.name.removeprefix(PREFIX)
            labels = KEPT.get(name)
            if labels is not None:
                key = tuple(sample.labels[label] for label in labels)
                series = found[name]
                series[key] = series.get(key, 0.0) + sample.value
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """The change between two readings.

    Attributes:
        before: the earlier reading; a series that it lacks began at 0.
        now: the later reading.
        seconds: time between them.
    """

    before: Series
    now: Series
    seconds: float

    def counted(self, name: str) -> dict[Key, float]:
        """The gain of each series of a counter; 0 for a counter that was reset."""
        before = self.before[name]
        return {
            key: max(0.0, value - before.get(key, 0.0)) for key, value in self.now[name].items()
        }

    def rates(self, name: str) -> dict[Key, float]:
        """The gains per second."""
        return {key: round(gained / self.seconds, 3) for key, gained in self.counted(name).items()}

    def means(self, name: str, scale: float = 1.0) -> dict[Key, float | None]:
        """The mean of the observations of each series of a histogram; None if there are none."""
        sums = self.counted(f"{name}_sum")
        counts = self.counted(f"{name}_count")
        return {
            key: round(sums[key] / count * scale, 3) if count else None
            for key, count in counts.items()
        }

    def value(self, name: str) -> float:
        """A gauge without labels."""
        return self.now[name].get((), 0.0)


def quantile(share: float, buckets: Mapping[Key, float]) -> float | None:
    """A quantile of a histogram, interpolated within its bucket; None without observations.

    Args:
        share: such as 0.99.
        buckets: upper bound -> number of observations up to it.
    """
    counts = sorted((float(bound), count) for (bound,), count in buckets.items())
    total = counts[-1][1] if counts else 0.0
    if not total:
        return None
    wanted = share * total
    for (lower, below), (upper, upto) in pairwise([(0.0, 0.0), *counts]):
        if upto >= wanted and upto > below:
            if math.isinf(upper):
                return lower  # the last bound: the distance beyond it is unknown
            return lower + (upper - lower) * (wanted - below) / (upto - below)
    return None


def snapshot(change: Change, states: Mapping[str, str]) -> dict[str, Any]:
    """The object of GET /live, except `at`, `totals` and `versions`; docs/page.md has each field.

    Args:
        change: the change between two readings.
        states: states of this process's replicas, by name.
    """
    return {
        "interval_s": round(change.seconds, 3),
        "ready": bool(change.value("ready")),
        "requests": _requests(change),
        "models": _models(change),
        "replicas": _replicas(change, states),
        "devices": _devices(change.now),
        "cache": {
            "bytes": int(change.value("cache_bytes")),
            "limit_bytes": int(change.value("cache_limit_bytes")),
            "entries": int(change.value("cache_entries")),
        },
    }


def totals(now: Series, models: Iterable[ModelId]) -> list[dict[str, Any]]:
    """What these versions have done since the server started, but for those without requests."""
    results = _of_models(now["model_requests_total"])
    outcomes = _of_models(now["items_total"])
    latencies = _of_models(now["model_latency_seconds_bucket"])
    found = []
    for model in models:
        labels = labels_of(model)
        of_model = results.get(labels, {})
        if not any(of_model.values()):
            continue
        items = outcomes.get(labels, {}).items()
        total = {
            "name": model.name,
            "version": model.version,
            "requests": int(sum(of_model.values())),
            "failed": int(of_model.get("failed", 0.0)),
            "failed_items": {code: int(count) for code, count in items if count and code != OK},
            "latency_ms": _by_bucket(latencies.get(labels, {})),
        }
        found.append(total)
    return found


def _of_models(series: Mapping[Key, float]) -> dict[Key, dict[str, float]]:
    """The series of each version, by their last label."""
    found: dict[Key, dict[str, float]] = {}
    for (name, number, last), value in series.items():
        found.setdefault((name, number), {})[last] = value
    return found


def _by_bucket(upto: Mapping[str, float]) -> dict[str, int]:
    """The observations in each bucket that has some, by its upper bound in milliseconds."""
    counts = [(0.0, 0.0), *sorted((float(bound), count) for bound, count in upto.items())]
    return {
        f"{bound * 1000:g}": int(count - below)
        for (_, below), (bound, count) in pairwise(counts)
        if count > below
    }


def version(status: VersionStatus, *, hides_detail: bool) -> dict[str, Any]:
    """An entry of `versions` of GET /live."""
    loading = status.state is ModelState.LOADING
    return {
        "name": status.id.name,
        "version": status.id.version,
        "state": status.state.value,
        "detail": None if hides_detail else status.problem,
        "stage": status.stage if loading else None,
        "seconds": round(time.monotonic() - status.since, 1) if loading else None,
        "progress": status.progress if loading else None,
    }


def _requests(change: Change) -> dict[str, Any]:
    by_code = change.rates("requests_total")
    buckets = change.counted("request_seconds_bucket")
    p50, p99 = (quantile(share, buckets) for share in (0.5, 0.99))
    return {
        "per_s": round(sum(by_code.values(), 0.0), 3),
        "in_flight": int(change.value("requests_in_flight")),
        "p50_ms": None if p50 is None else round(p50 * 1000, 3),
        "p99_ms": None if p99 is None else round(p99 * 1000, 3),
        "failed_per_s": {code: rate for (code,), rate in by_code.items() if rate and code != OK},
        "failed_total": {
            code: int(count)
            for (code,), count in change.now["requests_total"].items()
            if count and code != OK
        },
    }


def _models(change: Change) -> list[dict[str, Any]]:
    """Every served version: each has a queue."""
    items, computed = change.rates("items_total"), change.rates("items_computed_total")
    lookups, batches = change.rates("cache_lookups_total"), change.rates("batch_size_count")
    sizes = change.means("batch_size")
    queue_ms, compute_ms = (
        change.means(name, 1000.0) for name in ("queue_seconds", "compute_seconds")
    )
    waiting, predicted_s = change.now["queue_depth_items"], change.now["predicted_wait_seconds"]
    return [
        {
            "name": model[0],
            "version": int(model[1]),
            "items_per_s": items.get((*model, OK), 0.0),
            "computed_per_s": computed.get(model, 0.0),
            "batches_per_s": batches.get(model, 0.0),
            "batch_items": sizes.get(model),
            "queue_items": int(waiting.get(model, 0.0)),
            "queue_limit_items": int(limit),
            "predicted_wait_ms": round(predicted_s.get(model, 0.0) * 1000, 3),
            **{
                f"{result}_per_s": lookups.get((*model, result), 0.0)
                for result in ("hit", "miss", "joined")
            },
            "queue_ms": queue_ms.get(model),
            "compute_ms": compute_ms.get(model),
        }
        for model, limit in sorted(change.now["queue_limit_items"].items())
    ]


def _replicas(change: Change, states: Mapping[str, str]) -> list[dict[str, Any]]:
    busy, items = change.rates("replica_busy_seconds_total"), change.rates("replica_items_total")
    return [
        {
            "name": replica[0],
            "device": replica[1],
            "ready": bool(ready),
            "state": states.get(replica[0]),
            # Seconds are counted when a batch ends, so a long batch counts in one interval.
            "busy_share": min(1.0, busy.get(replica, 0.0)),
            "items_per_s": items.get(replica, 0.0),
        }
        for replica, ready in sorted(change.now["replica_ready"].items())
    ]


def _devices(now: Series) -> list[dict[str, Any]]:
    """The devices whose driver answers; failed readings are None."""
    readings = {name: now[f"device_{name}"] for name in DEVICE_READINGS}
    devices = sorted({device for series in readings.values() for (device,) in series})
    return [
        {
            "name": device,
            **{name: _known(series.get((device,))) for name, series in readings.items()},
        }
        for device in devices
    ]


def _known(reading: float | None) -> float | None:
    return None if reading is None or math.isnan(reading) else reading
