"""Metrics of several processes as one: what adds up, what vanishes, what stays the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from app.metrics import Metrics
from app.metrics.gauges import ModelGauges, ServedModel
from app.processes import shared_metrics
from app.processes.shared_metrics import SharedMetrics, SupervisorMetrics
from app.processes.shared_values import forget_gauges
from app.shared_file import SharedFile
from app.types import CacheCounts, ModelId

MODEL = ModelId("double", 3)
MEMORY = "process_resident_memory_bytes"
SERVED = ServedModel(MODEL, "plan", "float32")
LABELS = {"model": "double", "version": "3"}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[SharedFile]]:
    """Those of two workers and their parent."""
    monkeypatch.setattr("prometheus_client.values.ValueClass", None)  # restored when it is over
    made = [SharedFile.create() for _ in range(3)]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def make(files: Sequence[SharedFile]) -> Callable[[int], SharedMetrics]:
    """Makes the metrics of a worker, as its process would.

    Count with one before the next is made: a process has one, and where values are kept is global.
    """

    def made(index: int) -> SharedMetrics:
        metrics = SharedMetrics(index, files)
        metrics.watch(lambda: True, lambda: [SERVED])
        metrics.replica(f"cpu#{index}", "cpu", lambda: True)
        metrics.device("cuda:0", {"temperature_celsius": lambda: 60.0})
        metrics.cache_limit.set(100)
        metrics.build_info.labels("1", "2", "3", "false").set(1)
        metrics.open()
        return metrics

    return made


class Scraped:
    """What a scrape says."""

    def __init__(self, text: bytes) -> None:
        self.samples = [
            sample
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        ]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum over all series that carry these labels."""
        found = [s for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        if not found:
            raise KeyError(name)
        return sum(sample.value for sample in found)

    def series(self) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        return {(s.name, tuple(sorted(s.labels.items()))) for s in self.samples}


def count(metrics: Metrics) -> None:
    """Something of everything."""
    metrics.request("/predict", 200, "ok").count(0.003)
    model = metrics.model(MODEL)
    model.count_lookups(CacheCounts(1, 2, 3))
    model.outcome("ok", 6)
    model.batch_size.observe(2)
    metrics.add_model(
        MODEL, ModelGauges(*(partial(float, each) for each in (5, 7, 1, 3, 9, 0.5, 0)))
    )
    metrics.watch(lambda: True, lambda: [ServedModel(MODEL, "plan", "float32")])
    metrics.requests_open += 4


async def test_counters_and_gauges_add_up_at_every_worker(
    make: Callable[[int], SharedMetrics],
) -> None:
    one = make(0)
    count(one)
    count(one)
    other = make(1)
    count(other)
    for each in (one, other):
        one.write_down()
        other.write_down()
        says = Scraped(await each.scraped())
        assert says("torchlane_requests_total", code="ok", route="/predict") == 3
        assert says("torchlane_request_seconds_bucket", le="0.005") == 3
        assert says("torchlane_request_seconds_sum") == pytest.approx(0.009)
        assert says("torchlane_items_total", **LABELS) == 18
        assert says("torchlane_cache_lookups_total", result="joined") == 9
        assert says("torchlane_requests_in_flight") == 12
        assert says("torchlane_queue_depth_items") == 10
        assert says("torchlane_queue_limit_items") == 14
        assert says("torchlane_queue_bytes") == 6
        assert says("torchlane_queue_limit_bytes") == 18
        assert says("torchlane_predicted_wait_seconds") == 0.5  # the longest, not the sum
        assert says("torchlane_cache_limit_bytes") == 200
        assert says("torchlane_build_info") == 1
        assert says("torchlane_model_info", variant="plan", **LABELS) == 1
        assert says("torchlane_replica_ready") == 2
        assert says("torchlane_device_temperature_celsius") == 60  # the highest, not the sum
        assert says("torchlane_ready") == 1
    one.close()
    other.close()


async def test_a_retired_model_leaves_no_series(make: Callable[[int], SharedMetrics]) -> None:
    one, other = make(0), make(1)
    assert Scraped(await one.scraped())("torchlane_model_info") == 1
    one.watch(lambda: True, lambda: [])
    one.write_down()
    assert Scraped(await other.scraped())("torchlane_model_info") == 1
    other.watch(lambda: True, lambda: [])
    other.write_down()
    with pytest.raises(KeyError):
        Scraped(await one.scraped())("torchlane_model_info")
    one.close()
    other.close()


async def test_counters_of_a_dead_worker_continue(
    files: Sequence[SharedFile], make: Callable[[int], SharedMetrics]
) -> None:
    one = make(0)
    count(one)
    other = make(1)
    count(other)
    other.close()
    forget_gauges(files[1])
    says = Scraped(await one.scraped())
    assert says("torchlane_items_total") == 12
    assert says("torchlane_requests_in_flight") == 4
    assert says("torchlane_replica_ready") == 1
    cpu_s = says("process_cpu_seconds_total")
    other = make(1)
    count(other)
    other.write_down()
    says = Scraped(await one.scraped())
    assert says("torchlane_items_total") == 18
    assert says("torchlane_request_seconds_count") == 3
    assert says("torchlane_requests_in_flight") == 8
    assert says("process_cpu_seconds_total") >= cpu_s
    one.close()
    other.close()


async def test_series_match_those_of_one_process(
    make: Callable[[int], SharedMetrics], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make(0)
    count(worker)
    several = Scraped(await worker.scraped())
    worker.close()
    monkeypatch.undo()
    alone = Metrics()
    alone.watch(lambda: True, lambda: [SERVED])
    alone.replica("cpu#0", "cpu", lambda: True)
    alone.device("cuda:0", {"temperature_celsius": lambda: 60.0})
    alone.cache_limit.set(100)
    alone.build_info.labels("1", "2", "3", "false").set(1)
    count(alone)
    assert several.series() == Scraped(await alone.scraped()).series()


async def test_process_metrics_cover_parent_and_workers(
    files: Sequence[SharedFile], make: Callable[[int], SharedMetrics]
) -> None:
    parent = SupervisorMetrics(files[2], lambda: 2)
    worker = make(0)
    worker.watch_log(lambda: 3)
    says = Scraped(await worker.scraped())
    alone = Scraped(generate_latest(ProcessCollector(registry=None)))
    assert says(MEMORY) == pytest.approx(2 * alone(MEMORY), rel=0.05)
    assert says("process_open_fds") == pytest.approx(alone("process_open_fds"), abs=2)
    assert says("process_max_fds") == alone("process_max_fds")
    assert says("process_start_time_seconds") == alone("process_start_time_seconds")
    assert says("torchlane_log_lines_dropped_total") == 5
    worker.close()
    parent.close()


async def test_worker_writes_its_metrics_periodically(
    make: Callable[[int], SharedMetrics], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_metrics, "WRITE_S", 0.01)
    one, other = make(0), make(1)
    count(other)
    async with asyncio.timeout(30):
        while b'torchlane_items_total{model="double",outcome="ok"' not in await one.scraped():
            await asyncio.sleep(0.01)
    assert Scraped(await one.scraped())("torchlane_items_total") == 6
    one.close()
    other.close()


async def test_openmetrics_adds_up_over_processes(make: Callable[[int], SharedMetrics]) -> None:
    one, other = make(0), make(1)
    for each in (one, other):
        each.request("/predict", 200, "ok").count(0.003, "0af7651916cd43dd8448eb211c80319c")
        each.write_down()
    text, kind = await one.scraped_as("application/openmetrics-text")
    assert kind.startswith("application/openmetrics-text")
    found = openmetrics.text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call]
    families = {each.name: each for each in found}
    samples = families["torchlane_request_seconds"].samples
    assert [each.value for each in samples if each.name.endswith("_count")] == [2]
    assert not any(each.exemplar for each in samples)  # prometheus_client shares none
    one.close()
    other.close()
