"""A trace in Chrome's Trace Event Format, for ui.perfetto.dev and chrome://tracing.

Its times are microseconds since its start.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson

from app.telemetry.clocks import day_offset_ns
from app.telemetry.tracing import BatchRecord, RequestTrace, Token

Event: TypeAlias = dict[str, Any]

MOST_IDS = 16  # request ids per batch
MOST_EVENTS = 40_000  # per part
MOST_CHARACTERS = 128  # of a path or a request id
# Writing a chunk takes a third of a millisecond; then a thread waiting for the GIL gets it. Python
# alone would let the event loop wait for five milliseconds each time.
CHUNK, YIELD_S = 200, 0.0001
SLOW_S = 0.001  # a body that takes longer to arrive gets a range
END_BYTES = 64 << 10  # kept free for names of threads and the trace's metadata
# Tracks for devices that begin a batch before the last one has ended; above all thread numbers.
FIRST_TRACK = 1 << 40
GZIP_BITS, QUICK = 31, 1  # zlib's settings for a gzip header and the lowest level
TOKEN = Token()


class Collected(NamedTuple):
    """Batches, each with the ids of its requests, and requests."""

    batches: Sequence[tuple[BatchRecord, Sequence[bytes]]]
    requests: Sequence[RequestTrace]


class Collector:
    """A sink of `Tracing` that collects batches and requests."""

    def __init__(self) -> None:
        self._batches: list[tuple[BatchRecord, list[bytes]]] = []
        self._requests: list[RequestTrace] = []

    def wants(self, trace: RequestTrace, fields: Mapping[bytes, bytes]) -> Token | None:
        """Follow every request."""
        return TOKEN

    def batch_ended(self, record: BatchRecord) -> None:
        """Keep a batch."""
        self._batches.append((record, [each.request_id for each in record.traces[:MOST_IDS]]))

    def request_ended(self, trace: RequestTrace, token: Token) -> None:
        """Keep a request."""
        self._requests.append(trace)

    def take(self) -> Collected:
        """Return what was collected since the last call."""
        collected = Collected(self._batches, self._requests)
        self._batches, self._requests = [], []
        return collected


class ChromeTrace:
    """A trace that grows by parts, up to a limit. Used by one thread at a time.

    Args:
        process: the name of the process in the trace.
        most_bytes: maximum size of the trace, before compression.
        compressed: whether `end` returns a gzip file.

    Attributes:
        began_ns: the start of its times, in nanoseconds since 1970.
        is_full: whether there was no room for a part, or a part had more than MOST_EVENTS events.
        nbytes: current size, before compression.
    """

    def __init__(self, process: str, most_bytes: int, *, compressed: bool) -> None:
        began = time.perf_counter_ns()
        self.began_ns = began + day_offset_ns()
        self._began_s = began / 1e9
        self._process = process
        self._pid = os.getpid()
        self._loop = threading.get_native_id()
        self._most_bytes = most_bytes - END_BYTES
        self._squeeze = zlib.compressobj(QUICK, wbits=GZIP_BITS) if compressed else None
        self._parts: list[bytes] = []
        self._requests = itertools.count(1)
        self._names: dict[int, str] = {}  # names of threads and of other tracks
        self._used = {self._loop}  # tracks with events
        self._tracks: dict[str, int] = {}
        self.is_full = False
        self.nbytes = 0
        self._write(b'{"traceEvents":[\n')

    def add(self, events: Iterable[Event], collected: Collected) -> int:
        """Add events with times since `began_ns`, and collected ones, if there is room.

        Regularly releases the GIL for other threads.

        Returns:
            the number of events; those after MOST_EVENTS are omitted.
        """
        threads = {each.name: each.native_id for each in threading.enumerate()}
        self._names |= {number: name for name, number in threads.items() if number is not None}
        every = itertools.chain(
            events,
            (self._batch(record, ids, threads) for record, ids in collected.batches),
            (event for request in collected.requests for event in self._request(request)),
        )
        texts, count = [], 0
        while some := list(itertools.islice(every, CHUNK)):
            self._used.update(each["tid"] for each in some if each["ph"] == "X")
            texts.append(_listed(some))
            count += len(some)
            if count > MOST_EVENTS:
                self.is_full = True
                break
            time.sleep(YIELD_S)
        self._append(b"".join(texts), self._most_bytes)
        return count

    def recorder_paused(self, why: str, began: float, ended: float) -> None:
        """Add a range in which no operators were recorded."""
        text = _listed([self._span(f"recording: {why}", began, ended, self._loop)])
        self._append(text, self._most_bytes)

    def end(self, about: Mapping[str, object]) -> bytes:
        """The whole trace, with `about` as its metadata."""
        names = self._names | {self._loop: "event loop"}
        names |= {track: f"batches of {replica}" for replica, track in self._tracks.items()}
        meta = [self._named("process_name", self._loop, self._process)]
        meta += [
            self._named("thread_name", each, name)
            for each, name in names.items()
            if each in self._used
        ]
        self._append(_listed(meta), self._most_bytes + END_BYTES // 2)
        end = {"displayTimeUnit": "ms", "otherData": about}
        last = {"ph": "i", "name": f"end: {about['ended']}", "s": "p", "pid": self._pid}
        last |= {"tid": self._loop}
        last["ts"] = self._at(time.perf_counter())
        self._write(orjson.dumps(last) + b"\n]," + orjson.dumps(end)[1:])
        if self._squeeze is not None:
            self._parts.append(self._squeeze.flush())
        return b"".join(self._parts)

    def _append(self, text: bytes, most_bytes: int) -> None:
        if self.nbytes + len(text) > most_bytes:
            self.is_full = True
            return
        self._write(text)

    def _write(self, text: bytes) -> None:
        self.nbytes += len(text)
        self._parts.append(text if self._squeeze is None else self._squeeze.compress(text))

    def _at(self, moment: float) -> float:
        """A moment of `time.perf_counter` as a time of the trace."""
        return round((moment - self._began_s) * 1e6, 3)

    def _span(self, name: str, began: float, ended: float, track: int, **args: object) -> Event:
        began = max(began, self._began_s)  # Perfetto would drop a batch that began before the trace
        span = {"ph": "X", "cat": "torchlane", "name": name, "pid": self._pid, "tid": track}
        return {**span, "ts": self._at(began), "dur": round((ended - began) * 1e6, 3), "args": args}

    def _named(self, what: str, track: int, name: str) -> Event:
        return {"ph": "M", "name": what, "pid": self._pid, "tid": track, "args": {"name": name}}

    def _batch(
        self, record: BatchRecord, ids: Sequence[bytes], threads: Mapping[str, int | None]
    ) -> Event:
        """A batch on the track of its replica's thread, around the operators that it ran."""
        thread = threads.get(f"replica-{record.replica}")
        if thread is None or record.device != "cpu":
            thread = self._tracks.setdefault(record.replica, FIRST_TRACK + len(self._tracks))
        args: dict[str, object] = {
            "compute_ms": round(record.compute_s * 1e3, 3),
            "forwards": record.forwards,
            "requests": [_text(each) for each in ids],
        }
        if record.length:
            args["padded_to"] = record.length
        if record.fault:
            args["fault"] = record.fault
        name = f"batch {record.model} × {record.items}"  # noqa: RUF001
        return self._span(name, record.began, record.ended, thread, **args)

    def _request(self, trace: RequestTrace) -> Iterator[Event]:
        """A request and its phases as nested events, because requests overlap each other."""
        name = f"{trace.method} {trace.route or trace.path[:MOST_CHARACTERS]}".strip()
        args: dict[str, object] = {
            "request_id": _text(trace.request_id),
            "status": trace.status,
            "outcome": trace.outcome,
        }
        if trace.model is not None:
            args |= {"model": str(trace.model), "items": trace.items}
        if trace.cache is not None:
            args |= {"hit": trace.cache.hit, "miss": trace.cache.miss, "joined": trace.cache.joined}
        common: Event = {"cat": "request", "id": str(next(self._requests))}
        common |= {"pid": self._pid, "tid": self._loop}
        yield {"ph": "b", "name": name, "ts": self._at(trace.began), "args": args, **common}
        for phase, began, ended in phases(trace):
            yield {"ph": "b", "name": phase, "ts": self._at(began), **common}
            yield {"ph": "e", "name": phase, "ts": self._at(ended), **common}
        yield {"ph": "e", "name": name, "ts": self._at(trace.ended), **common}


def phases(trace: RequestTrace) -> Iterator[tuple[str, float, float]]:
    """Phases of a request, in order and without overlap: name, start and end."""
    if trace.received:
        if trace.received - trace.began > SLOW_S:
            yield "receive", trace.began, trace.received
        yield "decode", trace.received, max(trace.received, trace.decoded or trace.ended)
    if trace.runs and trace.decoded:
        began = max(trace.decoded, trace.runs[0].began)
        ended = max(began, *(each.ended for each in trace.runs))
        yield "queue", trace.decoded, began
        yield "forward", began, ended
    elif trace.left_queued:
        yield "queue", trace.decoded, max(trace.decoded, trace.ended)
    if trace.encoded:
        yield "encode", trace.answered, trace.encoded


def _listed(events: Sequence[Event]) -> bytes:
    """Events of a JSON list, each followed by a comma."""
    return orjson.dumps(events)[1:-1] + b",\n" if events else b""


def _text(request_id: bytes) -> str:
    return request_id[:MOST_CHARACTERS].decode("latin-1")
