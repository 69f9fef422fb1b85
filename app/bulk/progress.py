"""Progress of a run: a bar on a terminal, otherwise occasional lines; and a summary at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from app.bulk.errors import tell

LINE_S = 10.0
BUSY = 0.5  # share of the time from which on a stage can be what limits a run


class Reporter:
    """Shows progress on standard error.

    Args:
        total: number of rows; None if not known.
        rows_before: rows of earlier parts of the run.
    """

    def __init__(self, total: int | None, rows_before: int) -> None:
        self._total = total
        self._began_with = self._rows = rows_before
        self._began = self._line_at = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.completed:,} rows"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[rate]} rows/s"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[errors]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(
                "", total=total, completed=rows_before, rate="-", errors=""
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, rows: int, errors: int) -> None:
        """Show how many rows are done in total, and how many of them are bad."""
        self._rows = rows
        now = time.monotonic()
        rate = (rows - self._began_with) / max(1e-9, now - self._began)
        bad = f"{errors:,} bad" if errors else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=rows, rate=f"{rate:,.0f}", errors=bad)
        elif now - self._line_at >= LINE_S:
            self._line_at = now
            parts = [f"{rows:,} rows", f"{rate:,.0f} rows/s"]
            if self._total and rate:
                parts.insert(1, f"{rows / self._total:.1%}")
                parts.append(f"{(self._total - rows) / rate:,.0f} s left")
            tell(", ".join([*parts, *([bad] if bad else [])]))


def summary(report: Mapping[str, float], decoders: int, replicas: int) -> list[str]:
    """The last lines: what was done, and how the time was spent.

    Args:
        report: the driver's report.
        decoders: number of decoding processes; 0 if the reading thread decodes.
        replicas: number of the model's replicas.
    """
    seconds = max(1e-9, report["seconds"])
    busy = {"computing": (report["compute"] + report["answer"]) / seconds / replicas}
    if decoders:
        busy["reading"] = report["read"] / seconds
        busy["decoding"] = report["decode"] / seconds / decoders
    else:
        busy["reading and decoding"] = (report["read"] + report["decode"]) / seconds
    busy["writing"] = report["write"] / seconds
    most = max(busy, key=lambda name: busy[name])
    wait_share = report["waited_for_rows"] / seconds / replicas
    rate = report["rows"] / seconds
    rows = (
        f"{report['rows']:,} rows in {seconds:,.1f} s: {rate:,.0f} rows/s; {report['errors']:,} "
        f"bad, {report['equal']:,} equal to another row and not computed"
    )
    stages = (
        f"read {report['read']:.1f} s, decode {report['decode']:.1f} s ({max(1, decoders)} at a "
        f"time), compute {report['compute']:.1f} s ({replicas} at a time), answers "
        f"{report['answer']:.1f} s, write {report['write']:.1f} s"
    )
    if busy[most] < BUSY:
        limit = (
            f"no stage is the bottleneck: {most} was the busiest, {busy[most]:.0%} of the time; "
            "the rest is the start of processes, or other work on this machine"
        )
    else:
        limit = f"{most} is the bottleneck: busy {min(1.0, busy[most]):.0%} of the time"
    return [
        rows,
        stages,
        f"{limit}; replicas waited for rows {min(1.0, wait_share):.0%} of the time",
    ]
