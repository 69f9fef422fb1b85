"""Spans are made a while after a request is over, of which parts may have gone on."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from app.telemetry.making import FLAGS, Head, SpanMaker, end_of
from app.telemetry.tracing import BatchRecord, RequestTrace
from app.types import ModelId

MAKER = SpanMaker(Resource({}), InstrumentationScope("torchlane"))
HEAD = Head(1, 2, FLAGS, None, None, b"there", None, {"mine": 1, "torchlane.items": 7})


def a_left_request(decoded: float) -> RequestTrace:
    trace = RequestTrace("POST", "/predict", "/predict", b"abc", 1.0)
    trace.received, trace.decoded, trace.ended = 1.1, decoded, 1.3
    trace.is_accepted, trace.status, trace.outcome, trace.items = True, 499, "abandoned", 2
    return trace


def times_of(spans: list[ReadableSpan]) -> dict[str, tuple[float, float]]:
    """Milliseconds since the request began, by name."""
    began = spans[-1].start_time or 0
    times = ((span.start_time or 0, span.end_time or 0) for span in spans)
    ends = [(round((one - began) / 1e6), round((other - began) / 1e6)) for one, other in times]
    return dict(zip((span.name for span in spans), ends, strict=True))


def test_what_a_request_had_begun_ends_with_it_at_the_latest() -> None:
    assert times_of(MAKER.request(a_left_request(decoded=1.5), HEAD, end_of(0.0))) == {
        "decode": (100, 300),
        "queue": (300, 300),
        "POST /predict": (0, 300),
    }
    trace = a_left_request(decoded=1.2)
    record = BatchRecord(ModelId("double", 3), "cpu#0", "cpu", 1, 0)
    record.began, record.ended = 1.4, 1.6
    trace.batches = [record]
    spans = MAKER.request(trace, HEAD, end_of(0.0))
    assert times_of(spans) == {
        "decode": (100, 200),
        "queue": (200, 300),
        "forward": (300, 300),
        "POST /predict": (0, 300),
    }
    told = spans[-1].attributes or {}
    assert (told["mine"], told["torchlane.items"]) == (1, 2)  # the sampler's give way


def test_a_batch_that_ran_beside_one_that_failed_has_its_own_times() -> None:
    trace = a_left_request(decoded=1.11)
    for began, ended, fault in ((1.12, 1.2, "Lost"), (1.13, 1.15, ""), (1.25, 1.28, "")):
        record = BatchRecord(ModelId("double", 3), "cpu#0", "cpu", 1, 0)
        record.began, record.ended, record.fault = began, ended, fault
        trace.batches.append(record)
    spans = MAKER.request(trace, HEAD, end_of(0.0))
    began_s = spans[-1].start_time or 0
    times = [
        (
            span.name,
            *(round(((at or 0) - began_s) / 1e6) for at in (span.start_time, span.end_time)),
        )
        for span in spans[1:-1]
    ]
    assert times == [
        ("queue", 110, 120),
        ("forward", 120, 200),
        ("queue", 110, 130),
        ("forward", 130, 150),
        ("queue", 200, 250),  # its items were the failed ones
        ("forward", 250, 280),
    ]
