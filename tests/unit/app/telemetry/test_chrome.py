"""Traces in Chrome's format: ranges of batches and requests, names, and a size."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from typing import Any

import pytest

from app.telemetry.chrome import (
    END_BYTES,
    MOST_EVENTS,
    MOST_IDS,
    ChromeTrace,
    Collected,
    Collector,
    phases,
)
from app.telemetry.tracing import BatchRecord, RequestTrace, Tracing
from app.types import CacheCounts, ModelId

NOTHING = Collected((), ())
ABOUT = {"ended": "the time is up"}
MODEL = ModelId("digits", 1)


def a_trace(most_bytes: int = 1 << 20, *, compressed: bool = False) -> ChromeTrace:
    return ChromeTrace("torchlane 1", most_bytes, compressed=compressed)


def read(trace: ChromeTrace) -> list[dict[str, Any]]:
    """Its events but the last, which says why it ended."""
    whole = json.loads(trace.end(ABOUT))
    assert whole["otherData"] == ABOUT
    events: list[dict[str, Any]] = whole["traceEvents"]
    assert (events[-1]["ph"], events[-1]["name"]) == ("i", "end: the time is up")
    return events[:-1]


def a_batch(began: float, ended: float, device: str = "cpu", **changes: Any) -> BatchRecord:
    record = BatchRecord(MODEL, f"{device}#0", device, 8, 0)
    record.began, record.ended = began, ended
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def a_request(began: float, *batches: BatchRecord, **changes: Any) -> RequestTrace:
    """One that took 10 ms: its batches come between 2 and 8."""
    trace = RequestTrace("POST", "/predict", "/predict", b"abc", began)
    trace.received, trace.decoded = began + 0.0001, began + 0.002
    trace.answered, trace.encoded, trace.batches = began + 0.008, began + 0.009, list(batches)
    for name, value in changes.items():
        setattr(trace, name, value)
    trace.end(began + 0.01, changes.get("status", 200), changes.get("outcome", "ok"))
    return trace


def in_ms(trace: RequestTrace) -> list[tuple[str, float, float]]:
    return [
        (name, round((began - trace.began) * 1e3, 3), round((ended - trace.began) * 1e3, 3))
        for name, began, ended in phases(trace)
    ]


class TestPhases:
    def test_of_a_computed_request(self) -> None:
        first, second = a_batch(100.004, 100.006), a_batch(100.003, 100.007)
        assert in_ms(a_request(100.0, first, second)) == [
            ("decode", 0.1, 2.0),
            ("queue", 2.0, 3.0),
            ("forward", 3.0, 7.0),
            ("encode", 8.0, 9.0),
        ]

    def test_of_a_request_that_joined_a_running_batch(self) -> None:
        names = in_ms(a_request(100.0, a_batch(99.0, 100.007)))
        assert names[1:3] == [("queue", 2.0, 2.0), ("forward", 2.0, 7.0)]

    def test_of_a_cached_request(self) -> None:
        assert [name for name, *_ in in_ms(a_request(100.0))] == ["decode", "encode"]

    def test_of_a_request_with_a_running_batch(self) -> None:
        batch = a_batch(100.004, 0.0)
        left = a_request(100.0, batch, answered=0.0, encoded=0.0)
        batch.ended = 100.02
        assert in_ms(left)[1:] == [("queue", 2.0, 4.0), ("forward", 4.0, 10.0)]

    def test_of_a_request_that_leaves_the_queue(self) -> None:
        left = a_request(100.0, answered=0.0, encoded=0.0, left_queued=True)
        assert in_ms(left)[1:] == [("queue", 2.0, 10.0)]

    def test_of_a_request_that_was_never_decoded(self) -> None:
        refused = a_request(100.0, decoded=0.0, answered=0.0, encoded=0.0)
        assert in_ms(refused) == [("decode", 0.1, 10.0)]

    def test_of_a_request_with_a_slow_body(self) -> None:
        slow = a_request(100.0, received=100.0015)
        assert in_ms(slow)[:2] == [("receive", 0.0, 1.5), ("decode", 1.5, 2.0)]

    def test_of_a_request_without_a_body(self) -> None:
        plain = a_request(100.0, received=0.0, decoded=0.0, answered=0.0, encoded=0.0)
        assert in_ms(plain) == []


class TestTrace:
    def test_empty_trace_names_process_and_event_loop(self) -> None:
        events = read(a_trace())
        named = {event["name"]: event["args"]["name"] for event in events}
        assert named == {"process_name": "torchlane 1", "thread_name": "event loop"}
        assert {event["pid"] for event in events} == {os.getpid()}

    def test_trace_can_be_compressed(self) -> None:
        whole = json.loads(gzip.decompress(a_trace(compressed=True).end(ABOUT)))
        assert whole["displayTimeUnit"] == "ms"

    def test_times_are_microseconds_since_the_start(self) -> None:
        trace = a_trace()
        now, now_ns = time.perf_counter(), time.time_ns()
        trace.add([], Collected([(a_batch(now, now + 0.001), [b"abc"])], []))
        (batch,) = [event for event in read(trace) if event["ph"] == "X"]
        assert batch["dur"] == pytest.approx(1000, abs=0.01)
        assert batch["ts"] == pytest.approx((now_ns - trace.began_ns) / 1000, abs=5000)

    def test_batch_is_on_its_replicas_track(self) -> None:
        trace, stop = a_trace(), threading.Event()
        thread = threading.Thread(target=stop.wait, name="replica-cpu#0")
        thread.start()
        ids = [b"%d" % number for number in range(3)]
        trace.add(
            [], Collected([(a_batch(0.0, 1.0, forwards=2, compute_s=0.5, length=32), ids)], [])
        )
        stop.set()
        thread.join()
        events = read(trace)
        (batch,) = [event for event in events if event["ph"] == "X"]
        assert batch["name"] == "batch digits/1 × 8"  # noqa: RUF001
        assert batch["tid"] == thread.native_id
        assert batch["args"] == {
            "compute_ms": 500.0,
            "forwards": 2,
            "requests": ["0", "1", "2"],
            "padded_to": 32,
        }
        names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
        assert names[batch["tid"]] == "replica-cpu#0"

    def test_overlapping_batches_have_their_own_tracks(self) -> None:
        trace = a_trace()
        batches: list[tuple[BatchRecord, list[bytes]]] = [
            (a_batch(0.0, 2.0, "cuda:0"), []),
            (a_batch(1.0, 3.0, "cuda:0", fault="ReplicaError"), []),
            (a_batch(1.0, 3.0, "cuda:1"), []),
        ]
        trace.add([], Collected(batches, []))
        events = read(trace)
        spans = [event for event in events if event["ph"] == "X"]
        assert spans[0]["tid"] == spans[1]["tid"] != spans[2]["tid"]
        assert spans[1]["args"]["fault"] == "ReplicaError"
        names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
        assert names[spans[0]["tid"]] == "batches of cuda:0#0"
        assert names[spans[2]["tid"]] == "batches of cuda:1#0"

    def test_request_contains_its_phases(self) -> None:
        trace = a_trace()
        request = a_request(
            5.0, a_batch(5.003, 5.007), model=MODEL, items=2, cache=CacheCounts(1, 1, 0)
        )
        trace.add([], Collected([], [request, a_request(5.0, request_id=b"x" * 1000)]))
        events = [event for event in read(trace) if event["ph"] in "be"]
        first = [event for event in events if event["id"] == events[0]["id"]]
        assert [(event["ph"], event["name"]) for event in first] == [
            ("b", "POST /predict"),
            *((end, name) for name in ("decode", "queue", "forward", "encode") for end in "be"),
            ("e", "POST /predict"),
        ]
        times = [event["ts"] for event in first]
        assert times == sorted(times)
        assert first[0]["args"] == {
            "request_id": "abc",
            "status": 200,
            "outcome": "ok",
            "model": "digits/1",
            "items": 2,
            "hit": 1,
            "miss": 1,
            "joined": 0,
        }
        others = {event["id"] for event in events} - {first[0]["id"]}
        assert len(others) == 1
        (other,) = [event for event in events if event["id"] in others and "args" in event]
        assert other["args"]["request_id"] == "x" * 128

    def test_path_of_an_unrouted_request_is_truncated(self) -> None:
        trace = a_trace()
        trace.add([], Collected([], [a_request(5.0, route="", path="/" + "a" * 5000)]))
        names = {event["name"] for event in read(trace) if event["ph"] == "b"}
        assert "POST /" + "a" * 127 in names

    def test_given_events_are_unchanged(self) -> None:
        trace = a_trace()
        event = {"ph": "X", "name": "aten::add", "pid": 1, "tid": 2, "ts": 3.5, "dur": 1.25}
        trace.add([event], NOTHING)
        assert event in read(trace)

    def test_events_beyond_the_limit_are_dropped(self) -> None:
        trace = a_trace(END_BYTES + 1000)
        small = {"ph": "X", "name": "small", "pid": 1, "tid": 2, "ts": 0, "dur": 1}
        trace.add([small], NOTHING)
        full = [trace.is_full]
        trace.add([small | {"name": "x" * 1000}], NOTHING)
        assert [*full, trace.is_full] == [False, True]
        text = trace.end(ABOUT)
        assert len(text) == trace.nbytes <= END_BYTES + 1000
        assert "small" in [event["name"] for event in json.loads(text)["traceEvents"]]

    @pytest.mark.parametrize(("more", "is_full"), [(0, False), (1, True), (1000, True)])
    def test_part_with_too_many_events_is_truncated(self, more: int, is_full: bool) -> None:
        trace = a_trace(64 << 20)
        event = {"ph": "X", "name": "one", "pid": 1, "tid": 2, "ts": 0, "dur": 1}
        trace.add((dict(event) for _ in range(MOST_EVENTS + more)), NOTHING)
        assert trace.is_full is is_full
        names = [each["name"] for each in read(trace)]
        assert MOST_EVENTS <= names.count("one") <= MOST_EVENTS + 200


def test_earlier_batch_begins_with_the_trace() -> None:
    before = time.perf_counter()
    trace = a_trace()
    ended = time.perf_counter() + 0.01
    trace.add((), Collected([(a_batch(before - 1, ended), ())], ()))
    (span,) = [each for each in read(trace) if each["ph"] == "X"]
    assert span["ts"] == 0
    assert 0.01 <= span["dur"] / 1e6 <= ended - before


def test_collector_returns_its_content_once() -> None:
    tracing, collector = Tracing(), Collector()
    tracing.add(collector)
    assert tracing.may_follow([], {})
    request = tracing.begin(RequestTrace("GET", "/", "", b"id", 0.0), [], {})
    assert request is not None
    record = a_batch(0.0, 1.0)
    record.add([request])
    many = a_batch(0.0, 1.0)
    many.traces = [request] * (MOST_IDS + 1)
    tracing.batch_ended(record)
    tracing.batch_ended(many)
    tracing.end(request, 200, "ok")
    collected = collector.take()
    assert collected.batches == [(record, [b"id"]), (many, [b"id"] * MOST_IDS)]
    assert collected.requests == [request]
    assert collector.take() == Collected([], [])
