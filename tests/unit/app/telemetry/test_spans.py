"""The times of spans, when a request is over of which parts go on."""

from __future__ import annotations

from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.telemetry.spans import Ids, Sampling, Spans
from app.telemetry.tracing import BatchRecord, RequestTrace
from app.types import ModelId, ServedStep, Serving


def made_of(trace: RequestTrace, ended: BatchRecord | None = None) -> list[ReadableSpan]:
    """The spans of a request, and of a batch that has ended."""
    ids, exporter = Ids(), InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False, id_generator=ids)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer, sampling = provider.get_tracer("x"), Sampling(1.0, follows_parent=True)
    spans = Spans(tracer, tracer, ids, CompositePropagator([]), sampling)
    token = spans.wants(trace, {})
    assert token is not None
    if ended is not None:
        trace.tokens.append((spans, token))
        ended.traces.append(trace)
        spans.batch_ended(ended)
    spans.request_ended(trace, token)
    return list(exporter.get_finished_spans())


def a_batch(began: float, ended: float = 0.0, fault: str = "") -> BatchRecord:
    record = BatchRecord(ModelId("double", 3), "cpu#0", "cpu", 3, 0)
    record.began, record.ended, record.fault = began, ended, fault
    return record


def a_request(*batches: BatchRecord, decoded: float = 1.2, queued: bool = False) -> RequestTrace:
    """One that began at 1 s, was left at 1.3 s, and had items in the queue then or not."""
    trace = RequestTrace("POST", "/predict", "/predict", b"abc", 1.0)
    trace.received, trace.decoded, trace.items, trace.left_queued = 1.1, decoded, 2, queued
    trace.batches = list(batches)
    trace.end(1.3, 499, "abandoned")
    return trace


def times_of(trace: RequestTrace) -> list[tuple[str, int, int]]:
    """Names of its spans, with milliseconds since it began."""
    spans = made_of(trace)
    began = spans[-1].start_time or 0
    return [
        (
            span.name,
            round(((span.start_time or 0) - began) / 1e6),
            round(((span.end_time or 0) - began) / 1e6),
        )
        for span in spans
    ]


def parts_of(*batches: BatchRecord, queued: bool = False) -> list[tuple[str, int, int]]:
    return times_of(a_request(*batches, decoded=1.11, queued=queued))[1:-1]


def test_later_batch_changes_do_not_affect_spans() -> None:
    runs, waits = a_batch(1.25), a_batch(0.0)
    trace = a_request(runs, waits)
    before = times_of(trace)
    runs.kept = waits.kept = None
    waits.began, waits.ended = 1.29, 1.5
    runs.ended, runs.fault = 1.4, "Lost"
    assert times_of(trace) == before
    names = [name for name, *_ in before]
    assert names == ["decode", "queue", "forward", "queue", "POST /predict"]


def test_parallel_batch_keeps_its_own_times() -> None:
    lost, beside, again = a_batch(1.12, 1.2, "Lost"), a_batch(1.13, 1.15), a_batch(1.25, 1.28)
    assert parts_of(again, lost, beside) == [
        ("queue", 110, 120),
        ("forward", 120, 200),
        ("queue", 110, 130),
        ("forward", 130, 150),
        ("queue", 200, 250),  # its items were the failed ones
        ("forward", 250, 280),
    ]


def test_items_still_queued_get_a_final_span() -> None:
    computed = [("queue", 110, 120), ("forward", 120, 200)]
    assert parts_of(a_batch(1.12, 1.2)) == computed
    assert parts_of(a_batch(1.12, 1.2), queued=True) == [*computed, ("queue", 110, 300)]
    assert parts_of(a_batch(1.12, 1.2, "Lost"), queued=True) == [*computed, ("queue", 200, 300)]
    assert parts_of(queued=True) == [("queue", 110, 300)]


def test_a_batch_names_the_form_of_its_size() -> None:
    forms = {}
    for up_to in (2, 3, None):
        record = a_batch(1.1, 1.2)
        record.serving = Serving((ServedStep(2, "small"), ServedStep(up_to, "large")))
        span = made_of(a_request(), record)[0]
        assert span.name == "batch"
        forms[up_to] = (span.attributes or {}).get("torchlane.form")
    assert forms == {2: None, 3: "large", None: "large"}
