"""Profiles forwards: a trace for a viewer and a table of operators, per form."""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from export.errors import ExportError
from models.timing import WARM_RUNS

FORWARDS = 10  # recorded per form
WHOLE = "whole forward"  # the range around each
# The parts of a trace that a viewer needs. The rest contains the machine's host name and path.
TRACE_KEYS = ("schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds")


def profile(forms: Mapping[str, Callable[[], object]], folder: Path) -> list[Path]:
    """Record ten forwards of each form, after a few unrecorded ones.

    Each form gets `profile-NAME.json.gz`, a trace in Chrome's format for chrome://tracing or
    ui.perfetto.dev, and `profile-NAME.txt`, its operators by the time spent in each alone. No trace
    contains a path or the name of this machine. Characters that are not allowed in the name of an
    artifact's file become dashes.

    Args:
        forms: name -> one forward, which returns once its result is complete.
        folder: where to write.

    Returns:
        the files, two per form.

    Raises:
        ValueError: if two names become equal, or a name has no letter or digit.
        ExportError: if a file cannot be written, or nothing was recorded.
    """
    stems = {name: _stem(name) for name in forms}
    if len(set(stems.values())) != len(stems):
        raise ValueError(f"these names would give one file: {', '.join(sorted(stems))}")
    files = []
    for name, run in forms.items():
        trace, table = folder / f"{stems[name]}.json.gz", folder / f"{stems[name]}.txt"
        try:
            _record(name, run, trace, table)
        except OSError as error:
            raise ExportError(f"cannot write {table.name}: {error.strerror or error}") from error
        files += [trace, table]
    return files


def silence_recorder() -> None:
    """Call this before a process records anything: else each start and stop is logged on stderr."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def record(run: Callable[[], object], *, shapes: bool = False) -> torch.profiler.profile:
    """Record ten forwards after a few unrecorded ones; `shapes` adds those of the inputs."""
    silence_recorder()
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # about what it cannot record here
        for _ in range(WARM_RUNS):
            run()
        # acc_events: avoids a warning about a future default
        profiler = torch.profiler.profile(
            activities=activities, acc_events=True, record_shapes=shapes
        )
        with profiler:
            for _ in range(FORWARDS):
                with record_function(WHOLE):
                    run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
    return profiler


def trace_of(profiler: torch.profiler.profile) -> dict[str, Any]:
    """Return the trace in Chrome's format, without data that identifies this machine."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        trace: dict[str, Any] = json.loads(file.read_bytes())
    subset = {key: trace[key] for key in TRACE_KEYS if key in trace}
    subset["traceEvents"] = trace["traceEvents"]
    return subset


def compress(trace: dict[str, Any]) -> bytes:
    """Compress a trace; equal traces give equal bytes."""
    return gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), mtime=0)


def _record(name: str, run: Callable[[], object], trace: Path, table: Path) -> None:
    profiler = record(run)
    events = profiler.key_averages()
    if not events:
        raise ExportError(f"torch.profiler recorded nothing of {name}")
    trace.write_bytes(compress(trace_of(profiler)))
    table.write_text(
        f"{name}: {FORWARDS} forwards on torch {torch.__version__}, "
        f"{torch.get_num_threads()} intra-op threads. `{WHOLE}` is one whole call; kernels "
        "that a compiler generated are not operators: their time is counted there.\n\n"
        + events.table(sort_by="self_cpu_time_total", row_limit=-1)
    )


def _stem(name: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-")[:96]
    if not re.search(r"[A-Za-z0-9]", stem):
        raise ValueError(f"a form needs a name with a letter or digit in it, got {name!r}")
    return f"profile-{stem}"
