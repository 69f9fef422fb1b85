"""Builds and proves a large model in a process of its own, so that its forms are timed without it.

Torch keeps graphs that it traced or froze until the process ends: more than the weights, twice.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from export.artifact import staging_folder
from export.errors import ExportError
from export.pipeline import (
    ExportedArtifact,
    ExportJob,
    ProvedVariants,
    check_job,
    prove,
    time_and_publish,
)
from export.proving.prove import Stage
from export.timing.tune import TuneOptions
from models.definitions.definition import Progress
from models.definitions.loading import BrokenDefinition
from models.definitions.training import Diverged
from models.manifest import LARGE_BYTES
from models.system.extras import MissingExtra

CLEANUP_S = 10.0  # until a process that was told to end is killed


@dataclass(frozen=True, slots=True)
class _JobSummary:
    """What this process must know of a job that the other one has."""

    model: str
    out: Path
    tuning: TuneOptions


def is_large(file: Path | None) -> bool:
    """Return whether a model, by its file or folder, is built and proved in its own process."""
    if file is None or sys.platform != "linux":  # elsewhere torch does not survive a fork
        return False
    files = file.rglob("*") if file.is_dir() else (file,)
    with contextlib.suppress(OSError):  # the reader of the file says what is wrong with it
        return sum(each.stat().st_size for each in files if each.is_file()) > LARGE_BYTES
    return False


class Apart:
    """The other process, forked when it is opened: nothing may have been computed here before.

    Args:
        prepare: returns the job; runs in the other process, like everything that needs the model.
    """

    def __init__(self, prepare: Callable[[], ExportJob]) -> None:
        context = multiprocessing.get_context("fork")
        self._ours, theirs = context.Pipe()
        ends = (self._ours, theirs, prepare)
        self._process: BaseProcess = context.Process(target=_run, args=ends)
        self._process.start()
        theirs.close()
        self._summary: _JobSummary | None = None

    def wait_for_job(self) -> None:
        """Wait until the job is prepared; then nothing but its progress is left to print.

        Raises:
            ExportError: or whatever else `prepare` raised.
        """
        self._summary = self._receive(None)

    def export(self, stage: Stage) -> ExportedArtifact:
        """Export the model: see `export.pipeline.export`."""
        summary = self._summary
        assert summary is not None, "wait_for_job was not called"  # nosec B101
        with staging_folder(summary.out, summary.model) as staging:
            try:
                self._ours.send(staging)
                variants = self._receive(stage)
            finally:
                self.close()  # before the folder goes, into which it writes
            return time_and_publish(variants, summary.tuning, staging, stage)

    def close(self) -> None:
        """End the process, if it still runs; may be called again."""
        self._ours.close()
        self._process.terminate()
        self._process.join(CLEANUP_S)
        self._process.kill()
        self._process.join()

    def _receive(self, stage: Stage | None) -> Any:
        """Return the next result; pass on the progress before it."""
        progress: Progress | None = None
        while True:
            try:
                kind, *values = self._ours.recv()
            except (EOFError, OSError):
                self._process.join(CLEANUP_S)
                raise ExportError(self._end()) from None
            if kind == "error":
                self._process.join(CLEANUP_S)
                raise values[0]
            if kind == "result":
                return values[0]
            if kind == "stage" and stage is not None:
                progress = stage(*values)
            elif progress is not None:
                progress(*values)

    def _end(self) -> str:
        code = self._process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        advice = "; is memory short?" if code == -signal.SIGKILL else ""
        return f"the process that builds and checks the model ended ({how}){advice}"


@contextlib.contextmanager
def apart(prepare: Callable[[], ExportJob]) -> Iterator[Apart]:
    """Provide the other process; see `Apart`."""
    with contextlib.closing(Apart(prepare)) as process:
        process.wait_for_job()
        yield process


def _run(parents: Connection, pipe: Connection, prepare: Callable[[], ExportJob]) -> None:
    """Run in the other process: prepare the job, then build and prove its variants."""
    parents.close()  # else this end would keep the pipe open when the parent has gone

    def stage(name: str) -> Progress:
        pipe.send(("stage", name))
        return lambda done, total, note: pipe.send(("progress", done, total, note))

    try:
        pipe.send(("result", _prove_variants(pipe, prepare, stage)))
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        return  # the other process ends too, and says why
    except (ExportError, MissingExtra, BrokenDefinition, Diverged) as error:
        pipe.send(("error", error))


def _prove_variants(
    pipe: Connection, prepare: Callable[[], ExportJob], stage: Stage
) -> ProvedVariants:
    job = prepare()
    version = check_job(job)
    sys.stdout.flush()
    pipe.send(("result", _JobSummary(job.model, job.out, job.tuning)))
    return prove(job, version, pipe.recv(), stage)
