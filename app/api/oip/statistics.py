"""Statistics of models in the form of Triton's extension, from the metrics of the whole server.

Plain dicts, for REST and gRPC. Triton calls items inferences.

| figure | metric |
| --- | --- |
| inference_count | torchlane_items_computed |
| execution_count, compute_infer | torchlane_compute_seconds: batches that ran, time of each batch |
| success, fail | torchlane_items with the outcome `ok`, and with all other outcomes |
| queue | torchlane_queue_seconds; also items found in the cache or joined, without time |
| cache_hit, cache_miss | torchlane_cache_lookups; items that joined an equal one are neither |
| batch_stats | torchlane_batch_size: a bucket each, by its largest size; batches without time |

The other figures have no metric and are 0: last_inference, and the times of compute_input,
compute_output, success, fail, cache_hit and cache_miss. perf_analyzer requires equal counts of all
compute_..., and regards a version as used if its queue count has grown.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from app.metrics import Metrics
from app.registry.loaded_models import LoadedModel

ITEMS, CACHE = "torchlane_items", "torchlane_cache_lookups"
COMPUTED, BATCH_SIZE = "torchlane_items_computed", "torchlane_batch_size"
COMPUTE_S, QUEUE_S = "torchlane_compute_seconds", "torchlane_queue_seconds"
FAMILIES = frozenset((ITEMS, CACHE, COMPUTED, BATCH_SIZE, COMPUTE_S, QUEUE_S))

Samples = Mapping[tuple[str, str], Sequence[Sample]]  # by the name and version of the model


class Duration(TypedDict):
    """How often something happened, and its total duration."""

    count: int
    ns: int


class InferenceStatistics(TypedDict):
    """All inferences of a version."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class BatchStatistics(TypedDict):
    """Batches of up to this size, above the size of the previous entry."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class VersionStatistics(TypedDict):
    """Statistics of one version since the server started."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]


class Statistics(TypedDict):
    """An entry for each version."""

    model_stats: list[VersionStatistics]


async def statistics(metrics: Metrics, models: Iterable[LoadedModel]) -> Statistics:
    """Statistics of these versions over all processes of the server."""
    samples = await metrics.read(_by_version)
    return {"model_stats": [_of(model, samples) for model in models]}


def _by_version(collector: Collector) -> Samples:
    found: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for family in collector.collect():
        if family.name in FAMILIES:
            for sample in family.samples:
                found[sample.labels["model"], sample.labels["version"]].append(sample)
    return found


def _of(model: LoadedModel, samples: Samples) -> VersionStatistics:
    name, version = model.id.name, str(model.id.version)
    known = samples.get((name, version), ())

    def total(metric: str, **labels: str) -> float:
        return sum(
            each.value
            for each in known
            if each.name == metric and labels.items() <= each.labels.items()
        )

    def lasted(metric: str) -> Duration:
        return _duration(total(f"{metric}_count"), total(f"{metric}_sum"))

    ended, good = total(f"{ITEMS}_total"), total(f"{ITEMS}_total", outcome="ok")
    hit, joined = (total(f"{CACHE}_total", result=result) for result in ("hit", "joined"))
    computed, queued = lasted(COMPUTE_S), lasted(QUEUE_S)
    untimed = _duration(computed["count"])
    return {
        "name": name,
        "version": version,
        "last_inference": 0,
        "inference_count": int(total(f"{COMPUTED}_total")),
        "execution_count": computed["count"],
        "inference_stats": {
            "success": _duration(good),
            "fail": _duration(ended - good),
            "queue": {"count": queued["count"] + int(hit + joined), "ns": queued["ns"]},
            "compute_input": untimed,
            "compute_infer": computed,
            "compute_output": untimed,
            "cache_hit": _duration(hit),
            "cache_miss": _duration(total(f"{CACHE}_total", result="miss")),
        },
        "batch_stats": _batches(known, model.max_batch_size),
    }


def _batches(known: Iterable[Sample], largest: int) -> list[BatchStatistics]:
    """The buckets that have batches; the unbounded last bucket is named by the largest size."""
    found: list[BatchStatistics] = []
    name, below = f"{BATCH_SIZE}_bucket", 0
    buckets = ((float(each.labels["le"]), int(each.value)) for each in known if each.name == name)
    for bound, count in sorted(buckets):
        if count > below:
            found.append(
                {
                    "batch_size": largest if math.isinf(bound) else int(bound),
                    "compute_input": _duration(count - below),
                    "compute_infer": _duration(count - below),
                    "compute_output": _duration(count - below),
                }
            )
        below = count
    return found


def _duration(count: float = 0, seconds: float = 0.0) -> Duration:
    return {"count": int(count), "ns": round(seconds * 1e9)}
