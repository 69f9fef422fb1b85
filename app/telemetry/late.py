"""Spans are made by the thread that exports them; the event loop keeps what they are made of.

So their code runs once for many, not between two requests that have nothing to do with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import structlog
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

LOG = structlog.get_logger(__name__)
REFUSED_S = 1.0  # a receiver that answers so soon is there, and refuses these alone
_MAKING = threading.Lock()
_SAMPLED = SpanContext(1, 1, False, TraceFlags(TraceFlags.SAMPLED))


class LateSpan(ReadableSpan):
    """Spans that are not made before they are exported.

    Args:
        make: makes them; never called by two threads at a time, whatever it belongs to.
    """

    def __init__(self, make: Callable[[], list[ReadableSpan]]) -> None:
        self._context = _SAMPLED  # all that processors look at
        self._make: Callable[[], list[ReadableSpan]] | None = make
        self._made: list[ReadableSpan] = []

    def made(self) -> list[ReadableSpan]:
        """The spans; the same ones for each exporter."""
        with _MAKING:
            if self._make is not None:
                self._made, self._make = self._make(), None
            return self._made


class LateExporter(SpanExporter):
    """Has late spans made, and exports them.

    Args:
        exporter: gets them.
        most: at a time.
    """

    def __init__(self, exporter: SpanExporter, most: int) -> None:
        self._exporter = exporter
        self._most = most

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export them; the rest is lost with those that nobody took: they would wait as long."""
        made = [each for late in spans if isinstance(late, LateSpan) for each in _made(late)]
        result = SpanExportResult.SUCCESS
        for first in range(0, len(made), self._most):
            began = time.monotonic()
            told = self._exporter.export(made[first : first + self._most])
            if told is not SpanExportResult.SUCCESS:
                result = told
                if time.monotonic() - began > REFUSED_S:
                    break
        return result

    def shutdown(self) -> None:
        """Export nothing more."""
        self._exporter.shutdown()


def _made(late: LateSpan) -> list[ReadableSpan]:
    try:
        return late.made()
    except Exception:  # what is wrong with one is not to cost the others
        LOG.exception("span_failed")
        return []


class CommonResource(Resource):
    """A resource of many spans. Its hash, which exporters ask each span for, is made of JSON."""

    def __init__(self, given: Resource) -> None:
        super().__init__(given.attributes, given.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash
