"""Late spans are made once, by the exporter that is first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from app.telemetry import late
from app.telemetry.late import CommonResource, LateExporter, LateSpan


class Kept(SpanExporter):
    """Keeps the batches that it gets; the result is what it is told."""

    def __init__(self, result: SpanExportResult = SpanExportResult.SUCCESS) -> None:
        self.batches: list[list[ReadableSpan]] = []
        self.is_open = True
        self._result = result

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches.append(list(spans))
        return self._result

    def shutdown(self) -> None:
        self.is_open = False


def spans() -> list[ReadableSpan]:
    return [ReadableSpan(name) for name in "ab"]


def test_each_exporter_gets_the_same_spans() -> None:
    one, other = Kept(), Kept()
    both = [LateSpan(spans), LateSpan(spans)]
    assert LateExporter(one, 3).export(both) is SpanExportResult.SUCCESS
    assert LateExporter(other, 512).export(both) is SpanExportResult.SUCCESS
    assert [[span.name for span in batch] for batch in one.batches] == [["a", "b", "a"], ["b"]]
    assert [span for batch in one.batches for span in batch] == other.batches[0]


def test_slow_failure_drops_the_remaining_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = Kept(SpanExportResult.FAILURE)
    exporter = LateExporter(failing, 1)
    assert exporter.export([LateSpan(spans)]) is SpanExportResult.FAILURE
    assert len(failing.batches) == 2
    monkeypatch.setattr(late, "REFUSED_S", 0.0)
    assert exporter.export([LateSpan(spans)]) is SpanExportResult.FAILURE
    assert len(failing.batches) == 3
    exporter.shutdown()
    assert not failing.is_open


def test_failed_span_does_not_affect_others() -> None:
    def broken() -> list[ReadableSpan]:
        raise RuntimeError("bug")

    kept = Kept()
    assert LateExporter(kept, 9).export([LateSpan(broken), LateSpan(spans)]).name == "SUCCESS"
    assert [span.name for span in kept.batches[0]] == ["a", "b"]


def test_common_resource_equals_the_given_one() -> None:
    given = Resource({"service.name": "x"}, "http://schema")
    common = CommonResource(given)
    assert common == given
    assert hash(common) == hash(given)
