"""Export of OpenTelemetry traces, as its SDK reads its variables; needs the extra `otel`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import structlog
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk._configuration import (
    _get_exporter_names,
    _import_exporters,
    _import_sampler,
)
from opentelemetry.sdk._shared_internal import BatchProcessor
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, DEFAULT_ON, Sampler

from app.telemetry.spans import Ids, Sampling, Spans
from app.telemetry.variables import ENDPOINTS, EXPORTER

LOG = structlog.get_logger(__name__)
SAMPLER, SAMPLER_ARG = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
PROPAGATORS = "OTEL_PROPAGATORS"
RATIO, FIXED = "traceidratio", {"always_on": 1.0, "always_off": 0.0}  # samplers
MAX_LINKS = (
    10_000  # of a batch to its requests; the SDK's default, 128, is less than a batch may have
)
# The SDK's checks of the numbers for its processor, which has a thread from its start on.
NUMBERS = (
    BatchSpanProcessor._default_max_queue_size,
    BatchSpanProcessor._default_schedule_delay_millis,
    BatchSpanProcessor._default_max_export_batch_size,
    BatchSpanProcessor._default_export_timeout_millis,
)


class Configured(NamedTuple):
    """What the SDK makes of its variables."""

    sampler: Sampler
    sampling: Sampling
    propagator: TextMapPropagator
    exporters: list[type[SpanExporter]]


def configured() -> Configured:
    """Let the SDK read its variables.

    Raises:
        ValueError: if it does not accept one; by itself it would often use a default.
    """
    for name, value in list(os.environ.items()):
        if name.startswith("OTEL_") and not value.strip():
            del os.environ[name]  # blank counts as unset; the SDK would raise
    with _read(PROPAGATORS, "opentelemetry_propagator"):
        # Not at the top: its import reads the variable too.
        from opentelemetry.propagate import _load_propagators  # noqa: PLC0415

        propagator = _load_propagators()
    with _read(EXPORTER, "opentelemetry_traces_exporter"):
        with _default(EXPORTER, "otlp"):  # an endpoint is set
            names = _get_exporter_names("traces")
        exporters, _, _ = _import_exporters(names, [], [])
    name = os.environ.get(SAMPLER, "parentbased_always_on").strip().lower()
    share = _default(SAMPLER_ARG, "1.0") if RATIO in name else contextlib.nullcontext()
    with _read(SAMPLER, "opentelemetry_traces_sampler"), share:
        sampler = _import_sampler(name) or DEFAULT_ON
    with _read("OTEL_BSP_"):
        size, delay, most, timeout = [read() for read in NUMBERS]  # type: ignore[no-untyped-call]
        BatchSpanProcessor._validate_arguments(size, delay, most)  # type: ignore[no-untyped-call]
        if timeout <= 0:
            raise ValueError("OTEL_BSP_EXPORT_TIMEOUT must be positive")
    if any("otlp" in each for each in exporters):
        _check_endpoints(os.environ)
    root = name.removeprefix("parentbased_")
    ratio = float(os.environ.get(SAMPLER_ARG, "1.0")) if root == RATIO else FIXED.get(root)
    # Other propagators may read headers that they do not list: b3 reads more than it writes.
    named = propagator.fields <= {"traceparent", "tracestate", "baggage"}
    sampling = Sampling(
        ratio if named else None, follows_parent=named and name.startswith("parentbased_")
    )
    return Configured(sampler, sampling, propagator, list(exporters.values()))


@contextlib.contextmanager
def _default(name: str, value: str) -> Iterator[None]:
    """Give a variable that is not set a value while the SDK reads it."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


class Export:
    """Exports this process's spans as the variables specify.

    Args:
        version: the version of the server.
        worker: the worker's index; None for a single process.

    Attributes:
        spans: the sink that creates them.
    """

    def __init__(self, version: str, worker: int | None) -> None:
        sampler, sampling, propagator, exporters = configured()
        # It logs a full queue for each span; the exporter logs the cause.
        logging.getLogger(BatchProcessor.__module__).setLevel(logging.ERROR)
        ids, resource = Ids(), resource_of(version, worker)
        with _read("OTEL_SPAN_"):
            links = SpanLimits(max_links=MAX_LINKS)
            providers = [
                TracerProvider(sampler, resource, shutdown_on_exit=False, id_generator=ids),
                TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, span_limits=links),
            ]
        with _read("OTEL_EXPORTER_OTLP_"):
            self._processors = [BatchSpanProcessor(exporter()) for exporter in exporters]
        for provider in providers:
            for each in self._processors:
                provider.add_span_processor(each)
        tracer, parts = (each.get_tracer("torchlane", version) for each in providers)
        self.spans = Spans(tracer, parts, ids, propagator, sampling)

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


@contextlib.contextmanager
def _read(prefix: str, group: str = "") -> Iterator[None]:
    """Turn what the SDK says about variables into an error, if it only logs it too.

    Raises:
        ValueError: with the variables of this prefix, what it says, and the names in a group of
            entry points.
    """
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield
    except (RuntimeError, ValueError) as error:
        said.append(str(error))
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
    if said:
        given = sorted(name for name in os.environ if name.startswith(prefix))
        shown = [name for name in given if "HEADERS" not in name]  # these may hold a secret
        values = [f"{name}={os.environ[name]!r}" for name in shown]
        names = ", ".join(sorted(entry_points(group=group).names)) if group else ""
        known = f"; the names are {names}" if names else ""
        message = said[0]
        for name in set(given).difference(shown):
            message = message.replace(os.environ[name], "...")
            values.append(name)
        raise ValueError(f"{', '.join(values)} cannot be used: {message}{known}")


def _check_endpoints(environ: Mapping[str, str]) -> None:
    """Check what the SDK would only find out at each export."""
    name = next((name for name in ENDPOINTS if name in environ), None)
    if name is None:
        return
    given = environ[name].strip()
    try:
        url = urlsplit(given if "://" in given else f"http://{given}")
        good = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        good = False
    if not good or any(each.isspace() for each in given):
        raise ValueError(f"{name}={given!r} must be a URL such as http://collector:4317")
