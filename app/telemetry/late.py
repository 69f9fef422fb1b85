"""Spans that the exporting thread creates, from data that the event loop keeps.

Their code thus runs once for many spans, and does not delay unrelated requests.
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
REFUSED_S = 1.0  # a receiver that answers within this time is up, and refuses only these spans
_MAKING = threading.Lock()
_SAMPLED = SpanContext(1, 1, False, TraceFlags(TraceFlags.SAMPLED))


class LateSpan(ReadableSpan):
    """Spans that are created when they are exported.

    Args:
        make: creates them; two threads never call such functions at the same time.
    """

    def __init__(self, make: Callable[[], list[ReadableSpan]]) -> None:
        self._context = _SAMPLED  # processors read nothing else
        self._make: Callable[[], list[ReadableSpan]] | None = make
        self._made: list[ReadableSpan] = []

    def made(self) -> list[ReadableSpan]:
        """The spans, which are the same for each exporter."""
        with _MAKING:
            if self._make is not None:
                self._made, self._make = self._make(), None
            return self._made


class LateExporter(SpanExporter):
    """Creates late spans and exports them.

    Args:
        exporter: exports the created spans.
        most: maximum number of spans in one call of the exporter.
    """

    def __init__(self, exporter: SpanExporter, most: int) -> None:
        self._exporter = exporter
        self._most = most

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the spans; if the receiver times out, drop the rest, which would wait as long."""
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
        """Stop exporting."""
        self._exporter.shutdown()


def _made(late: LateSpan) -> list[ReadableSpan]:
    try:
        return late.made()
    except Exception:  # the other spans are still exported
        LOG.exception("span_failed")
        return []


class CommonResource(Resource):
    """A resource of many spans with a cached hash: exporters need it per span, and it uses JSON."""

    def __init__(self, given: Resource) -> None:
        super().__init__(given.attributes, given.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash
