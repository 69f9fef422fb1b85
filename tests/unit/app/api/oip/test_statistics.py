"""Metrics as Triton's statistics, of one process and of several."""

from __future__ import annotations

import pytest

from app.api.oip.statistics import VersionStatistics, statistics
from app.backends.selection import Preference, select
from app.codecs.choose import codec_for
from app.metrics import Metrics
from app.processes.shared_metrics import SharedMetrics
from app.registry.loaded_models import LoadedModel
from app.shared_file import SharedFile
from app.types import CacheCounts, ModelId
from tests.unit.models.manifests import make_manifest


def model(version: int = 3) -> LoadedModel:
    made = make_manifest()
    selection = select(made, Preference())
    return LoadedModel(
        ModelId("tiny", version), made, codec_for(made), selection, max_batch_size=2000
    )


def work(metrics: Metrics) -> None:
    """4 requests for 13 items: one from the cache, two with 7 items in 3 batches, one failed."""
    of_model = metrics.model(ModelId("tiny", 3))
    of_model.count_lookups(CacheCounts(hit=4, miss=7, joined=2))
    for size in (1, 3, 4):
        of_model.batch_size.observe(size)
        of_model.compute_seconds.observe(0.002)
    of_model.request(0.001, 0.0, 0.0, computed=False)
    of_model.request(0.010, 0.003, 0.004, computed=True)
    of_model.request(0.020, 0.004, 0.002, computed=True)
    of_model.count_failure(0.5)
    of_model.computed.inc(7)
    of_model.outcome("ok", 10)
    of_model.outcome("overloaded", 2)
    of_model.outcome("abandoned")


def check(found: VersionStatistics, processes: int) -> None:
    def times(count: int, ns: int = 0) -> dict[str, int]:
        return {"count": count * processes, "ns": ns * processes}

    assert found == {
        "name": "tiny",
        "version": "3",
        "last_inference": 0,
        "inference_count": 7 * processes,
        "execution_count": 3 * processes,
        "inference_stats": {
            "success": times(3, 31_000_000),
            "fail": times(1, 500_000_000),
            "queue": times(3, 7_000_000),
            "compute_input": times(2),
            "compute_infer": times(2, 6_000_000),
            "compute_output": times(2),
            "cache_hit": times(1),
            "cache_miss": times(2),
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": times(count),
                "compute_infer": times(count),
                "compute_output": times(count),
            }
            for size, count in ((1, 1), (4, 2))
        ],
    }


async def test_statistics_match_the_metrics() -> None:
    metrics = Metrics()
    work(metrics)
    (found,) = (await statistics(metrics, [model()]))["model_stats"]
    check(found, processes=1)


async def test_several_processes_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [SharedFile.create() for _ in range(2)]
    monkeypatch.setattr("prometheus_client.values.ValueClass", None)  # restored when it is over
    workers = []
    for index in range(2):
        workers.append(SharedMetrics(index, files))
        work(workers[-1])
        workers[-1].write_down()
    for each in workers:
        (found,) = (await statistics(each, [model()]))["model_stats"]
        check(found, processes=2)
    for file in files:
        file.close()
