"""Profiles of this process: torch's own traces, with a range for each batch."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import structlog
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile, record_function

from app.errors import NotRecorded
from app.threads import in_thread
from app.types import Profile
from models.scratch import scratch_folder

LOG = structlog.get_logger(__name__)
MOST_BYTES = 64 << 20  # of a trace, before compression
# Target number of events in a slice: for each event torch holds the GIL for about 1.2 us when the
# slice ends, and again when it is written.
SLICE_EVENTS = 2000
LEAST_SLICE_S, LONGEST_SLICE_S = 0.02, 0.25
POLL_S = 0.001
HELD_S = 1.0  # maximum wait for batches: shorter than a hang that the watchdog reports
BETWEEN = b",\n"
END_BYTES = 64 << 10  # kept free for the end of the trace
QUICK = 1  # the lowest level of gzip
NAMED = ("process_name", "thread_name")
FOLDER = "torchlane-profile-"
DONE, FULL, STOPPING = "the time is up", "the trace is full", "the server is shutting down"
LEFT = "the caller disconnected"


class _Batches:
    """The forwards that run; as a context, one of them."""

    def __init__(self) -> None:
        self.recorded = False
        self._threads: set[int] = set()
        self._gate = threading.Lock()

    def __enter__(self) -> None:
        self._threads.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self._threads.discard(threading.get_ident())

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A forward with a range of the trace; begins once forwards are not held."""
        with self._gate:
            self.__enter__()
        with self, record_function(name):
            yield

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold forwards that have not begun, and wait for the others, for HELD_S at most.

        A recording begins between forwards so that each of its operators is in a range, and ends
        there because torch's memory may be corrupted if an operator runs meanwhile.
        """
        with self._gate:
            until = time.monotonic() + HELD_S
            while self._threads and time.monotonic() < until:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
            yield


BATCHES = _Batches()  # torch records the whole process


def batch_range(model: str, version: int, rows: int) -> AbstractContextManager[None]:
    """The context in which a batch runs: a range of the trace while a profile is recorded."""
    if not BATCHES.recorded:
        return BATCHES
    return BATCHES.range(f"batch of {rows}, {model}/{version}")


class Profiler:
    """Records one trace at a time.

    Args:
        name: the name of the process in traces.
        turn: held during a profile, until about a time of `time.monotonic`; it raises
            AlreadyRecording if another profile is being recorded, in any worker.
        stopping: whether the server is stopping.
        most_bytes: maximum size of a trace, before compression.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[float], AbstractContextManager[None]],
        stopping: Callable[[], bool],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._name = name
        self._turn = turn
        self._stopping = stopping
        self._most_bytes = most_bytes
        # Otherwise torch logs each start and stop to stderr, at the next lower level.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")

    async def profile(self, seconds: float, *, compressed: bool) -> Profile:
        """See `app.api.service.Profiler`."""
        left = asyncio.Event()
        work = asyncio.create_task(self._record(seconds, left, compressed=compressed))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            left.set()
            await asyncio.gather(work, return_exceptions=True)
            raise

    async def _record(self, seconds: float, left: asyncio.Event, *, compressed: bool) -> Profile:
        began, file = time.monotonic(), io.BytesIO()
        with self._turn(began + seconds), gzip.open(file, "wb", QUICK) as trace:
            LOG.info("profiling", seconds=seconds)
            trace.write(b'{"traceEvents":[\n')
            BATCHES.recorded = True
            try:
                ended = await self._slices(began + seconds, left, trace)
            finally:
                BATCHES.recorded = False
            took_s = round(time.monotonic() - began, 3)
            about = orjson.dumps({"server": self._name, "seconds": took_s, "ended": ended})
            trace.write(BETWEEN.join(_names(self._name)))
            trace.write(b'],"displayTimeUnit":"ms","otherData":' + about + b"}")
            LOG.info("profiled", seconds=took_s, ended=ended, bytes=trace.tell())
        content = file.getvalue()
        if not compressed:
            content = await in_thread(partial(gzip.decompress, content))
        return Profile(content, took_s, ended)

    async def _slices(self, ends_at: float, left: asyncio.Event, trace: gzip.GzipFile) -> str:
        """Record slices and write their events; returns why the recording ended."""
        slice_s = LEAST_SLICE_S
        while True:
            async with _recording() as recording:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(left.wait(), min(slice_s, ends_at - time.monotonic()))
            # Its thread does not delay the end of the process, however slow the disk is.
            count, events = await in_thread(partial(_events_of, recording))
            if trace.tell() + len(events) > self._most_bytes - END_BYTES:
                return FULL
            await in_thread(partial(trace.write, events))
            if left.is_set():
                return LEFT
            if self._stopping():
                return STOPPING
            if time.monotonic() >= ends_at:
                return DONE
            wanted_s = slice_s * SLICE_EVENTS / count
            slice_s = max(LEAST_SLICE_S, min(LONGEST_SLICE_S, 2 * slice_s, wanted_s))


def _events_of(recording: profile) -> tuple[int, bytes]:
    """The number of events in a slice, and their JSON with commas; of operators only times."""
    try:
        with scratch_folder(FOLDER, Path(tempfile.gettempdir())) as folder:
            file = folder / "trace.json"
            recording.export_chrome_trace(str(file))  # type: ignore[no-untyped-call]
            events: list[dict[str, Any]] = orjson.loads(file.read_bytes())["traceEvents"]
    except (OSError, orjson.JSONDecodeError) as error:  # torch reports no failed write
        raise NotRecorded(
            f"the profile could not be written to the temporary folder ({error}): free space "
            "there, or set TMPDIR to a writable folder with some and restart"
        ) from error
    named = [(name, os.getpid()) for name in NAMED]
    kept = [  # the others are names, and torch's own slices
        each
        for each in events
        if isinstance(each["pid"], int) and (each["name"], each["pid"]) not in named
    ]
    for event in kept:
        if event.get("cat") == "cpu_op":
            del event["args"]
    return len(events), BETWEEN.join([*map(orjson.dumps, kept), b""])


def _names(process: str) -> Iterator[bytes]:
    """The names of this process and its threads; torch's are those of ended threads, or missing."""
    named = [(0, NAMED[0], process)]
    named += [(each.native_id or 0, NAMED[1], each.name) for each in threading.enumerate()]
    for number, kind, name in named:
        event = {"ph": "M", "name": kind, "pid": os.getpid(), "tid": number, "args": {"name": name}}
        yield orjson.dumps(event)


@contextlib.asynccontextmanager
async def _recording() -> AsyncIterator[profile]:
    """Record all threads, from a moment between forwards to another."""
    recording = profile(  # torch.profiler.profile imports torch's compiler, which takes 1.8 s
        use_cpu=True,
        use_device="cuda" if torch.cuda.is_available() else None,
        use_kineto=True,
        acc_events=True,  # otherwise it warns about a future default
        # Without `trace_only` it creates a Python object for each event.
        experimental_config=_ExperimentalConfig(profile_all_threads=True, trace_only=True),
    )
    async with BATCHES.held():
        recording.__enter__()  # type: ignore[no-untyped-call]
    try:
        yield recording
    finally:
        async with BATCHES.held():
            recording.__exit__(None, None, None)  # type: ignore[no-untyped-call]
