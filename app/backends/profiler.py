"""Records the operators that torch runs in all threads of this process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile

from app.errors import NotRecorded
from models.scratch import scratch_folder

FOLDER = "torchlane-profile-"
OWN = ("Trace", "overhead")  # categories of events about the recorder itself
WORTH = ("X", "s", "f")  # phases: spans, and the arrows from a launch to its kernel

# Reads the recorded events in Chrome's format. Their times are microseconds since a moment, which
# is passed in nanoseconds since 1970. Slow; may run in any thread.
Recorded = Callable[[int], Iterator[dict[str, Any]]]


class TorchRecorder:
    """Records from `start` to `stop`, in parts. Call it in the main thread.

    Parts avoid holding the GIL for long: torch holds it for about 1.2 us per event when a recording
    ends, and again when it is written. No operator should run while a recording ends, because torch
    does not wait for it.
    """

    def __init__(self) -> None:
        self._running: profile | None = None
        self._named: set[tuple[object, ...]] = set()  # since `start`

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: if a recording is already running.
        """
        if self._running is not None:
            raise RuntimeError("bug: a recording is already running")
        # Otherwise it logs each start and stop to stderr, at the next lower level.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        self._named = set()
        self._running = _begun()

    def next(self) -> Recorded:
        """End a part and begin the next one."""
        recorded = self.stop()
        self._running = _begun()
        return recorded

    def stop(self) -> Recorded:
        """End the last part."""
        running, self._running = self._running, None
        if running is None:
            raise RuntimeError("bug: no recording is running")
        named = self._named
        running.__exit__(None, None, None)  # type: ignore[no-untyped-call]

        def events(since_ns: int) -> Iterator[dict[str, Any]]:
            try:
                with scratch_folder(FOLDER, Path(tempfile.gettempdir())) as folder:
                    file = folder / "trace.json"
                    running.export_chrome_trace(str(file))  # type: ignore[no-untyped-call]
                    trace = orjson.loads(file.read_bytes())
            except (OSError, orjson.JSONDecodeError) as error:  # torch reports no failed write
                raise NotRecorded(
                    f"the profile could not be written to the temporary folder ({error}): free "
                    "space there, or set TMPDIR to a writable folder with some and restart"
                ) from error
            return _read(trace, since_ns, named)

        return events


def _begun() -> profile:
    made = profile(
        use_cpu=True,
        use_device="cuda" if torch.cuda.is_available() else None,
        use_kineto=True,
        acc_events=True,  # otherwise it warns about a future default
        # trace_only: otherwise it creates a Python object for each event
        experimental_config=_ExperimentalConfig(profile_all_threads=True, trace_only=True),
    )
    made.__enter__()  # type: ignore[no-untyped-call]
    return made


def _read(
    trace: dict[str, Any], since_ns: int, named: set[tuple[object, ...]]
) -> Iterator[dict[str, Any]]:
    """The events worth showing; for operators on the CPU, only name and times.

    Args:
        trace: the trace as torch wrote it.
        since_ns: the moment from which times count, in nanoseconds since 1970.
        named: tracks of devices whose names the trace already has.
    """
    own = os.getpid()
    shift_us = (int(trace.get("baseTimeNanoseconds", 0)) - since_ns) / 1000
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and isinstance(event["pid"], int) and event["pid"] != own:
            key = (event["name"], event["pid"], event["tid"])
            if key not in named:
                named.add(key)
                yield event
        if event["ph"] not in WORTH or event.get("cat") in OWN:
            continue
        event["ts"] = round(event["ts"] + shift_us, 3)
        if event.get("cat") == "cpu_op":
            del event["args"]
        yield event
