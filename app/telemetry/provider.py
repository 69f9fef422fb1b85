"""Export of OpenTelemetry traces, configured by its variables; needs the extra `otel`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import structlog
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk._shared_internal import BatchProcessor
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from app.telemetry.late import CommonResource, LateExporter
from app.telemetry.making import SpanMaker
from app.telemetry.spans import Sampling, Spans
from app.telemetry.variables import (
    BATCH_SIZE,
    EXPORTER_GROUP,
    PROPAGATOR_GROUP,
    SAMPLER_ARG,
    SAMPLER_GROUP,
    count_of,
    exporters_of,
    propagators_of,
    ratio_of,
    sampler_of,
)

LOG = structlog.get_logger(__name__)


class Export:
    """Exports this process's spans as the variables specify.

    Args:
        environ: the variables, already checked.
        version: the version of the server.
        worker: the worker's index; None for a single process.

    Attributes:
        spans: the sink that creates them.
    """

    def __init__(self, environ: Mapping[str, str], version: str, worker: int | None) -> None:
        _drop_blank_variables()
        sampler, ratio = sampler_of(environ), ratio_of(environ)
        argument = environ.get(SAMPLER_ARG) if ratio is None else ratio
        propagators = propagators_of(environ)
        # Other propagators may read headers that they do not list: b3 reads more than it writes.
        named = {*propagators} <= {"tracecontext", "baggage", "none"}
        sampling = Sampling(
            sampler=_loaded(SAMPLER_GROUP, sampler)(argument),
            propagator=_propagator(propagators),
            ratio=ratio if named else None,
            follows_parent=named and sampler.startswith("parentbased_"),
        )
        # It logs a full queue for each span; the exporter logs the cause.
        logging.getLogger(BatchProcessor.__module__).setLevel(logging.ERROR)
        most = count_of(environ, BATCH_SIZE)
        self._processors = [
            BatchSpanProcessor(LateExporter(_loaded(EXPORTER_GROUP, name)(), most))
            for name in exporters_of(environ)
        ]
        scope = InstrumentationScope("torchlane", version)
        maker = SpanMaker(CommonResource(resource_of(version, worker)), scope)
        self.spans = Spans(self._processors, sampling, maker)

    async def close(self, budget_s: float) -> None:
        """Send the queued spans within a time limit; a hanging receiver does not get the rest."""
        loop = asyncio.get_running_loop()

        def shut_down(processor: BatchSpanProcessor, done: asyncio.Event) -> None:
            processor.shutdown()  # type: ignore[no-untyped-call]
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done.set)

        closing = [(processor, asyncio.Event()) for processor in self._processors]
        for each in closing:  # in a daemon thread, which does not delay the process's exit
            threading.Thread(target=shut_down, args=each, name="traces-close", daemon=True).start()
        try:
            async with asyncio.timeout(budget_s):
                for _, done in closing:
                    await done.wait()
        except TimeoutError:
            LOG.warning("traces_not_sent", waited_s=budget_s)


def _drop_blank_variables() -> None:
    """Unset blank variables, as the specification treats them; the SDK would raise."""
    for name, value in list(os.environ.items()):
        if name.startswith("OTEL_") and not value.strip():
            del os.environ[name]


def resource_of(version: str, worker: int | None) -> Resource:
    """The resource of all spans of the process; the variables may add to it."""
    own: dict[str, Any] = {SERVICE_NAME: "torchlane", SERVICE_VERSION: version}
    if worker is not None:
        own["torchlane.worker"] = worker
    named = Resource.create()
    merged = Resource(own).merge(named)
    if str(named.attributes[SERVICE_NAME]).startswith("unknown_service"):  # the SDK's default
        return merged.merge(Resource({SERVICE_NAME: own[SERVICE_NAME]}))
    return merged


def _propagator(names: list[str]) -> TextMapPropagator:
    if "none" in names:
        return CompositePropagator([])
    wanted = [name for name in names if name != "baggage"]  # the server does not use it
    return CompositePropagator([_loaded(PROPAGATOR_GROUP, name)() for name in wanted])


def _loaded(group: str, name: str) -> Any:
    (found, *_) = entry_points(group=group, name=name)
    return found.load()
