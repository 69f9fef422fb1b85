"""What is counted. Recorded where it happens; written out by GET /metrics."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from app.metrics.bound import (
    KeyMetrics,
    ModelMetrics,
    ReplicaMetrics,
    RequestMetrics,
    Tallies,
    labels_of,
)
from app.metrics.counters import Counters
from app.metrics.gauges import Gauges, ModelGauges, ModelInfo, ServedModel
from app.types import ModelId

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
MOST_KEY_NAMES = 1000  # that have series of their own: names may come and go for years
OTHER_KEYS = "(other)"  # no key can be named so


class Metrics(Counters, Gauges):
    """All metrics of one process, in a registry of their own.

    Attributes:
        requests_open: requests for predictions without an answer; counted by who answers them.
    """

    def __init__(self) -> None:
        self.requests_open = 0
        # A _created series beside every series would double what is scraped.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._tallies = Tallies()
        self.registry.register(self._tallies)  # the first: what it hands over is then collected
        Counters.__init__(self, self.registry)
        Gauges.__init__(self, self.registry)
        self.requests_in_flight.set_function(lambda: self.requests_open)
        self._key_names: set[str] = set()
        self._model_info = ModelInfo()
        self.registry.register(self._model_info)
        ProcessCollector(registry=self.registry)  # memory, CPU, file descriptors

    def model(self, model: ModelId) -> ModelMetrics:
        """The metrics of one version, looked up once, whatever its revision."""
        return self._model(model.plain)

    @functools.cache  # noqa: B019  # one Metrics per process, few models
    def _model(self, model: ModelId) -> ModelMetrics:
        return ModelMetrics(self, self._tallies, model)

    def served(self, model: ModelId, values: ModelGauges[Callable[[], float]]) -> None:
        """Show what is asked of a model when it is scraped."""
        for gauge, value in zip(self.of_models, values, strict=True):
            gauge.labels(*labels_of(model)).set_function(value)

    def retired(self, model: ModelId) -> None:
        """Show that no more; what was counted of it stays."""
        for gauge in self.of_models:
            gauge.remove(*labels_of(model))

    def load_ended(self, model: ModelId, result: str) -> None:
        """Count what became of a version: 'loaded', 'failed' or 'retired'."""
        self.model_loads.labels(*labels_of(model), result).inc()

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

    @functools.cache  # noqa: B019  # one Metrics per process, few replicas
    def batches_of(self, replica: str, device: str) -> ReplicaMetrics:
        """The metrics of what a replica runs, looked up once."""
        return ReplicaMetrics(self, self._tallies, replica, device)

    def replica(self, name: str, device: str, is_ready: Callable[[], bool]) -> None:
        """Show whether a replica takes work; asked when it is scraped."""
        self.replica_ready.labels(name, device).set_function(lambda: float(is_ready()))

    def device(self, device: str, readings: Mapping[str, Callable[[], float]]) -> None:
        """Show what its driver says of a device, such as `temperature_celsius`, at each scrape."""
        for name, read in readings.items():
            self.of_devices[name].labels(device).set_function(read)

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
