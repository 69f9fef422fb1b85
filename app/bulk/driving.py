"""Drives a run to its end, whatever ends it, and reports the result."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Protocol

from app.bulk.driver import BulkJob, Driver
from app.bulk.errors import BulkError, TooManyErrors, tell
from app.bulk.progress import Reporter, summary
from app.bulk.state import RunState
from app.bulk.writing import ERRORS_FILE
from app.errors import TorchlaneError
from models.system.command_lines import INTERRUPTED_EXIT_CODE


class Runner(Protocol):
    """What runs the rows: a model, or a handler."""

    @property
    def steps(self) -> list[dict[str, object]]:
        """The form for each batch size, once the run has started; empty if there is no choice."""

    @property
    def devices(self) -> Sequence[object]:
        """One for each row or batch that runs at a time."""


def drive(
    driver: Driver, job: BulkJob, folder: RunState, runner: Runner, max_bad: float
) -> tuple[int, bool]:
    """Run until all rows are done, or the run cannot go on.

    Returns:
        the exit code, and whether all threads have ended.

    Raises:
        BulkError: the input has no rows.
    """
    total = job.source.total
    if total is not None and job.stop is not None:
        total = min(total, job.stop)
    if total == 0:
        raise BulkError("the input has no rows")
    code, lines = 0, list[str]()
    try:
        driver.start()
        folder.begin(runner.steps)
        with Reporter(total, folder.rows) as reporter:
            driver.work(reporter)
        if not folder.rows:
            raise BulkError("the input has no rows")
        folder.end("finished", [], driver.report())
        code, verdict = judge(folder, max_bad)
        lines = summary(driver.report(), job.workers, len(runner.devices)) + verdict
    except KeyboardInterrupt:
        code = INTERRUPTED_EXIT_CODE
        rows = f"{folder.rows:,} rows are done"
        lines = [f"torchlane: interrupted; {rows}: to resume, repeat the command with --resume"]
        _end_if_interrupted(lines)
        tell("torchlane: interrupted, stopping")
    except TooManyErrors as error:
        code = error.exit_code
        folder.end("too many errors", driver.bad, driver.report())
        lines = [f"torchlane: {error}; see {folder.folder / ERRORS_FILE} for the reasons"]
    except (BulkError, TorchlaneError) as error:
        code = error.exit_code if isinstance(error, BulkError) else BulkError.exit_code
        lines = [f"torchlane: {error}"]
    finally:
        has_ended = driver.close()
    tell(*lines)
    return code, has_ended


def judge(folder: RunState, max_bad: float) -> tuple[int, list[str]]:
    """The exit code of a finished run, and a line about its bad rows, also of earlier parts."""
    if not folder.errors:
        return 0, []
    see = f"see {folder.folder / ERRORS_FILE} for the reasons"
    if folder.errors == folder.rows:
        return BulkError.exit_code, [f"torchlane: no row has a prediction: {see}"]
    bad = f"{folder.errors:,} of {folder.rows:,} rows are bad"
    if folder.errors > max_bad * folder.rows:
        return BulkError.exit_code, [f"torchlane: {bad}, --max-bad allows {max_bad:.4g}: {see}"]
    return 0, [f"{bad}: {see}"]


def _end_if_interrupted(lines: Sequence[str]) -> None:
    """Let a second Ctrl-C or SIGTERM end the process at once, at any point."""

    def end(*_: object) -> None:
        tell(*lines)
        os._exit(INTERRUPTED_EXIT_CODE)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)
