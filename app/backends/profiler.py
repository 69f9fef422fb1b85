"""Profiles of this process: torch's own traces, with a range for each batch."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import structlog
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile, record_function

from app.errors import NotRecorded, ShuttingDown
from app.threads import in_thread
from app.types import Profile
from models.system.scratch import scratch_folder

LOG = structlog.get_logger(__name__)
MOST_BYTES = 64 << 20  # of a trace, before compression
# Target number of events in a slice: for each event torch holds the GIL for about 1.2 us when the
# slice ends, and again when it is written.
SLICE_EVENTS = 2000
LEAST_SLICE_S, LONGEST_SLICE_S = 0.02, 0.25
POLL_S = 0.001
HELD_S = 1.0  # maximum wait for batches: shorter than a hang that the watchdog reports
# Before that, forwards are held for so long at a time, and then go on for as long.
TRY_S, TRIES = 0.05, 10
BEGIN, BETWEEN = b'{"traceEvents":[\n', b",\n"
END_BYTES = 64 << 10  # kept free for the end of the trace
GZIP_BITS, QUICK = 31, 1  # zlib's settings for a gzip header and the lowest level
FOLDER = "torchlane-profile-"
DONE, FULL, STOPPING = "the time is up", "the trace is full", "the server is shutting down"


class _Batches:
    """The forwards that run; as a context, one of them.

    torch's memory may be corrupted if an operator runs while a recording ends, so it ends between
    forwards, unless one takes longer than HELD_S.
    """

    def __init__(self) -> None:
        self.recorded = False
        self._threads: set[int] = set()
        self._held = False
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        self._threads.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self._threads.discard(threading.get_ident())

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A forward with a range of the trace; begins once forwards are not held."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held, 2 * HELD_S)
            self.__enter__()
        with self, record_function(name):
            yield

    async def hold(self) -> bool:
        """Hold those that have not begun until `go_on`, and wait for the others.

        Returns:
            whether the task was cancelled: the recording must end first.
        """
        cancelled = False
        for limit_s in (*[TRY_S] * TRIES, HELD_S):  # a long forward must not delay all others
            if self._held:
                self.go_on()
                cancelled |= await _slept(TRY_S)
            with self._changed:
                self._held = True
            until = time.monotonic() + limit_s
            while self._threads and time.monotonic() < until:
                cancelled |= await _slept(POLL_S)
            if not self._threads:
                break
        return cancelled

    def go_on(self) -> None:
        """Let forwards begin again."""
        with self._changed:
            self._held = False
            self._changed.notify_all()


Recording: TypeAlias = profile  # a method of `Profiler` has the same name
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
        if self._stopping():
            raise ShuttingDown("the server is shutting down; try another server")
        began = time.monotonic()
        with self._turn(began + seconds):
            LOG.info("profiling", seconds=seconds)
            trace = _Trace(self._name, self._most_bytes, compressed=compressed)
            BATCHES.recorded = True
            try:
                ended = await self._record(trace, began + seconds)
            except asyncio.CancelledError:
                LOG.info("profile_dropped", seconds=round(time.monotonic() - began, 3))
                raise
            finally:
                BATCHES.recorded = False
            took_s = round(time.monotonic() - began, 3)
            about = {"server": self._name, "seconds": took_s, "ended": ended}
            content = await in_thread(partial(trace.end, about))
        LOG.info("profiled", seconds=took_s, ended=ended, bytes=trace.nbytes)
        return Profile(content, took_s, ended)

    async def _record(self, trace: _Trace, ends_at: float) -> str:
        """Record and read slices in turn; returns why the recording ended."""
        slice_s = LEAST_SLICE_S
        while True:
            recording = await self._begin()  # between forwards: each has its range, or is not seen
            try:
                await self._wait(min(time.monotonic() + slice_s, ends_at))
            finally:
                cancelled = await BATCHES.hold()
                recording.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                BATCHES.go_on()
            if cancelled:
                raise asyncio.CancelledError
            # Its thread does not delay the end of the process, however slow the disk is.
            events = await in_thread(partial(trace.add, recording))
            if trace.is_full:
                return FULL
            if self._stopping():
                return STOPPING
            if time.monotonic() >= ends_at:
                return DONE
            wanted_s = slice_s * SLICE_EVENTS / max(events, 1)
            slice_s = max(LEAST_SLICE_S, min(LONGEST_SLICE_S, 2 * slice_s, wanted_s))

    async def _begin(self) -> Recording:
        cancelled = await BATCHES.hold()
        try:
            if cancelled:
                raise asyncio.CancelledError
            return _begun()
        finally:
            BATCHES.go_on()

    async def _wait(self, until: float) -> None:
        """Wait until a time of `time.monotonic`, or until the server stops."""
        while not self._stopping() and (left_s := until - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(LEAST_SLICE_S, left_s))


class _Trace:
    """Slices of one trace."""

    def __init__(self, process: str, most_bytes: int, *, compressed: bool) -> None:
        self._process = process
        self._most_bytes = most_bytes - END_BYTES
        self._squeeze = zlib.compressobj(QUICK, wbits=GZIP_BITS) if compressed else None
        self._parts: list[bytes] = []
        self._names: dict[int | None, str] = {}  # of threads, by their native ids
        self.is_full = False
        self.nbytes = 0
        self._write(BEGIN)

    def add(self, recording: profile) -> int:
        """Add a slice, if there is room; returns the number of its events."""
        try:
            with scratch_folder(FOLDER, Path(tempfile.gettempdir())) as folder:
                file = folder / "trace.json"
                recording.export_chrome_trace(str(file))  # type: ignore[no-untyped-call]
                events = orjson.loads(file.read_bytes())["traceEvents"]
        except (OSError, orjson.JSONDecodeError) as error:  # torch reports no failed write
            raise NotRecorded(
                f"the profile could not be written to the temporary folder ({error}): free space "
                "there, or set TMPDIR to a writable folder with some and restart"
            ) from error
        texts = [orjson.dumps(event) for event in self._worth(events)]
        room = self._most_bytes - self.nbytes
        ends = itertools.accumulate(len(text) + len(BETWEEN) for text in texts)
        fitting = sum(end <= room for end in ends)
        self.is_full = fitting < len(texts)
        if fitting:
            comma = BETWEEN if self.nbytes > len(BEGIN) else b""
            self._write(comma + BETWEEN.join(texts[:fitting]))
        return len(events)

    def end(self, about: dict[str, object]) -> bytes:
        """The whole trace, with the names of threads, and `about` as its metadata."""
        kind: dict[str, object] = {"ph": "M", "name": "thread_name", "pid": os.getpid()}
        for number, name in self._names.items():
            text = orjson.dumps({**kind, "tid": number, "args": {"name": name}})
            self._write((BETWEEN if self.nbytes > len(BEGIN) else b"") + text)
        self._write(b'],"displayTimeUnit":"ms","otherData":' + orjson.dumps(about) + b"}")
        if self._squeeze is not None:
            self._parts.append(self._squeeze.flush())
        return b"".join(self._parts)

    def _write(self, text: bytes) -> None:
        self.nbytes += len(text)
        self._parts.append(text if self._squeeze is None else self._squeeze.compress(text))

    def _worth(self, events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The events worth showing, without torch's names of threads; of operators only times."""
        self._names |= {each.native_id: each.name for each in threading.enumerate()}
        for event in events:
            if not isinstance(event["pid"], int) or event.get("cat") == "overhead":
                continue  # about the recorder itself
            if event.get("cat") == "cpu_op":
                del event["args"]
            elif event["name"] == "process_name" and event["pid"] == os.getpid():
                event["args"]["name"] = self._process
            elif event["name"] == "thread_name" and event["tid"] in self._names:
                continue
            yield event


async def _slept(seconds: float) -> bool:
    """Wait; returns whether the task was cancelled meanwhile."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        return True
    return False


def _begun() -> profile:
    made = profile(
        use_cpu=True,
        use_device="cuda" if torch.cuda.is_available() else None,
        use_kineto=True,
        acc_events=True,  # otherwise it warns about a future default
        experimental_config=_all_threads(),
    )
    made.__enter__()  # type: ignore[no-untyped-call]
    return made


def _all_threads() -> _ExperimentalConfig:
    try:  # without `trace_only` it creates a Python object for each event
        return _ExperimentalConfig(profile_all_threads=True, trace_only=True)
    except TypeError:  # before torch 2.13
        return _ExperimentalConfig(profile_all_threads=True)
