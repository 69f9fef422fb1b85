"""Metrics, recorded all over the server and exposed by GET /metrics."""

from __future__ import annotations

import asyncio
import functools
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from prometheus_client import (
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from app.metrics.bound import (
    KeyMetrics,
    ModelMetrics,
    ReplicaMetrics,
    RequestMetrics,
    SharedCacheMetrics,
    Tallies,
    labels_of,
)
from app.metrics.counters import Counters
from app.metrics.gauges import Gauges, ModelGauges, ModelInfoCollector, ServedModel
from app.metrics.own import OwnRegistry, keep_in_memory
from app.types import ModelId

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
OPENMETRICS = "application/openmetrics-text"
NEVER = re.compile(r"q=0(\.0*)?")
MAX_KEY_NAMES = 1000  # with their own series: over years there may be many names
OTHER_KEYS = "(other)"  # not a valid key name
T = TypeVar("T")


class Metrics(Counters, Gauges):
    """All metrics of one process, in a registry of their own.

    Attributes:
        requests_open: prediction requests without an answer, counted by the code that answers.
    """

    def __init__(self) -> None:
        self.requests_open = 0
        self._device_readings: list[Callable[[], float]] = []
        keep_in_memory()
        self.registry = OwnRegistry()
        self._tallies = Tallies()
        self.registry.register(self._tallies)  # first: the others then collect its counts
        Counters.__init__(self, self.registry)
        Gauges.__init__(self, self.registry)
        self.requests_in_flight.set_function(lambda: self.requests_open)
        self._key_names: set[str] = set()
        self._model_info = ModelInfoCollector()
        self.registry.register(self._model_info)
        ProcessCollector(registry=self.registry)  # memory, CPU, file descriptors

    def model(self, model: ModelId) -> ModelMetrics:
        """The metrics of one version, looked up once for all its revisions."""
        return self._model(model.plain)

    @functools.cache  # noqa: B019  # one Metrics per process, few models
    def _model(self, model: ModelId) -> ModelMetrics:
        return ModelMetrics(self, self._tallies, model)

    def add_model(self, model: ModelId, values: ModelGauges[Callable[[], float]]) -> None:
        """Register the gauges of a model; their values are read at each scrape."""
        for gauge, value in zip(self.of_models, values, strict=True):
            gauge.labels(*labels_of(model)).set_function(value)

    def remove_model(self, model: ModelId) -> None:
        """Remove the gauges of a model; its counters stay."""
        with warnings.catch_warnings():
            # prometheus_client cannot remove values from its files, but ours are in memory.
            warnings.simplefilter("ignore", UserWarning)
            for gauge in self.of_models:
                gauge.remove(*labels_of(model))

    def watch_log(self, dropped_total: Callable[[], int]) -> None:
        """Count the lines that the log has dropped, of which `dropped_total` returns the total."""
        self._tallies.total(self.log_lines_dropped, dropped_total)

    def count_load(self, model: ModelId, result: str) -> None:
        """Count a result of a version, one of those that the metric lists."""
        self.model_loads.labels(*labels_of(model), result).inc()

    def key(self, name: str) -> KeyMetrics:
        """The metrics of callers with a key of this name; names over the maximum share one."""
        if name not in self._key_names:
            if len(self._key_names) >= MAX_KEY_NAMES:
                return self._key(OTHER_KEYS)
            self._key_names.add(name)
        return self._key(name)

    @functools.cache  # noqa: B019  # one Metrics per process, few names
    def _key(self, name: str) -> KeyMetrics:
        return KeyMetrics(self, self._tallies, name)

    @functools.cache  # noqa: B019  # one Metrics per process, few replicas
    def batches_of(self, replica: str, device: str) -> ReplicaMetrics:
        """The metrics of a replica, looked up once."""
        return ReplicaMetrics(self, self._tallies, replica, device)

    def shared_cache(self, is_open: Callable[[], bool]) -> SharedCacheMetrics:
        """The metrics of the shared cache; `is_open` is read at each scrape."""
        self.shared_cache_open.set_function(lambda: float(is_open()))
        return SharedCacheMetrics(self, self._tallies)

    def replica(self, name: str, device: str, is_ready: Callable[[], bool]) -> None:
        """Register whether a replica accepts work; read at each scrape."""
        self.replica_ready.labels(name, device).set_function(lambda: float(is_ready()))

    def device(self, device: str, readings: Mapping[str, Callable[[], float]]) -> None:
        """Register the driver's readings of a device, such as `temperature_celsius`."""
        for name, read in readings.items():
            self.of_devices[name].labels(device).set_function(read)
            self._device_readings.append(read)

    def watch(
        self, is_ready: Callable[[], bool], models: Callable[[], Iterable[ServedModel]]
    ) -> None:
        """Register readiness and the served models; both are read at each scrape."""
        self.ready.set_function(lambda: float(is_ready()))
        self._model_info.models = models

    @functools.cache  # noqa: B019  # one Metrics per process, few combinations
    def request(self, route: str, status: int, code: str) -> RequestMetrics:
        """The metrics of requests with this result, looked up once."""
        return RequestMetrics(self, self._tallies, route, status, code)

    async def scraped(self) -> bytes:
        """All metrics in the Prometheus text format; called on the event loop."""
        return await self.read(generate_latest)

    async def scraped_as(self, accept: str) -> tuple[bytes, str]:
        """The answer of GET /metrics, and its Content-Type; called on the event loop.

        It has the text format unless the Accept header contains OpenMetrics, which scrapers send
        only if they prefer it.
        """
        if any(_is_openmetrics(each) for each in accept.split(",")):
            return await self.read(openmetrics.generate_latest), openmetrics.CONTENT_TYPE_LATEST
        return await self.scraped(), CONTENT_TYPE

    async def read(self, how: Callable[[Collector], T]) -> T:
        """Apply `how` to all current metrics; called on the event loop."""
        self.tasks.set(len(asyncio.all_tasks()))
        if self._device_readings:  # drivers may be slow; readings cache their values
            await asyncio.to_thread(self._ask_devices)
        return how(self.registry)

    def _ask_devices(self) -> None:
        for read in self._device_readings:
            read()

    def open(self) -> None:
        """Prepare for scrapes; called on the event loop. A single process needs nothing."""

    def close(self) -> None:
        """Flush the counts before the event loop ends."""
        self._tallies.flush()


def _is_openmetrics(media_range: str) -> bool:
    kind, *parameters = (each.strip().lower() for each in media_range.split(";"))
    return kind == OPENMETRICS and not any(NEVER.fullmatch(each) for each in parameters)
