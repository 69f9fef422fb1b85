"""Statistics of models in the form of Triton's extension, from the metrics of the whole server.

Plain dicts, for REST and gRPC. Triton calls items inferences.

| figure | metric |
| --- | --- |
| inference_count | torchlane_items_computed |
| execution_count | torchlane_compute_seconds: batches that ran |
| success, queue | torchlane_model_requests: `computed` and `cached`; times: `ok`, `queue` |
| fail | torchlane_model_requests: `failed`; time: `failed` |
| compute_infer, cache_miss | torchlane_model_requests: `computed`; time of the first: `compute` |
| cache_hit | torchlane_model_requests: `cached` |
| batch_stats | torchlane_batch_size: a bucket each, by its largest size; batches without time |

A handler's requests are its inferences and executions: the server knows no items of its, and no
batches.

Times are in torchlane_model_request_seconds. As in Triton, a request counts once, however many
items it has, and each request of a batch has the whole time of the batch. The other figures have no
metric and are 0: last_inference, and the times of compute_input, compute_output, cache_hit and
cache_miss.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from app.metrics import Metrics
from app.registry.loaded_models import LoadedHandler, LoadedModel

REQUESTS, REQUEST_S = "torchlane_model_requests", "torchlane_model_request_seconds"
ITEMS_COMPUTED, BATCH_SIZE = "torchlane_items_computed", "torchlane_batch_size"
BATCH_S = "torchlane_compute_seconds"
FAMILIES = frozenset((REQUESTS, REQUEST_S, ITEMS_COMPUTED, BATCH_SIZE, BATCH_S))

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


async def statistics(metrics: Metrics, models: Iterable[LoadedModel | LoadedHandler]) -> Statistics:
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


def _of(model: LoadedModel | LoadedHandler, samples: Samples) -> VersionStatistics:
    name, version = model.id.name, str(model.id.version)
    known = samples.get((name, version), ())

    def total(metric: str, **labels: str) -> float:
        return sum(
            each.value
            for each in known
            if each.name == metric and labels.items() <= each.labels.items()
        )

    def requests(*results: str, part: str = "") -> Duration:
        count = sum(total(f"{REQUESTS}_total", result=result) for result in results)
        return _duration(count, total(f"{REQUEST_S}_total", part=part))

    untimed = requests("computed")
    inferences, batches = untimed["count"], list[BatchStatistics]()
    if isinstance(model, LoadedModel):
        inferences = int(total(f"{ITEMS_COMPUTED}_total"))
        batches = _batches(known, model.max_batch_size)
    return {
        "name": name,
        "version": version,
        "last_inference": 0,
        "inference_count": inferences,
        "execution_count": int(total(f"{BATCH_S}_count")),
        "inference_stats": {
            "success": requests("computed", "cached", part="ok"),
            "fail": requests("failed", part="failed"),
            "queue": requests("computed", "cached", part="queue"),
            "compute_input": untimed,
            "compute_infer": requests("computed", part="compute"),
            "compute_output": untimed,
            "cache_hit": requests("cached"),
            "cache_miss": untimed,
        },
        "batch_stats": batches,
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
