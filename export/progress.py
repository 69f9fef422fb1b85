"""Shows the progress of long commands: a bar for each step, or a line without a terminal."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from export.proving.prove import Stage

UNBOUNDED = 10_000  # columns, so that output to a file or a pipe is never cut or wrapped


class _Trimmed:
    """A file wrapper that strips trailing spaces, the padding of tables."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write("\n".join(line.rstrip(" ") for line in text.split("\n")))

    def flush(self) -> None:
        self._file.flush()


def stdout() -> Console:
    """Return the console for commands: as wide as the terminal, or unbounded without one."""
    console = Console()
    if console.is_terminal:
        return console
    return Console(file=_Trimmed(sys.stdout), width=UNBOUNDED)  # type: ignore[arg-type]


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a text as it is, without markup, and in one line however long it is."""
    console.print(escape(text), style=style, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def progress_on(console: Console) -> Iterator[Stage]:
    """Provide a function that starts a step and returns its progress callback."""
    if not console.is_terminal:
        with contextlib.ExitStack() as steps:

            def line(name: str) -> _Line:
                steps.close()  # the previous step is over
                return steps.enter_context(contextlib.closing(_Line(console, name)))

            yield line
        return
    columns = (
        TextColumn("{task.description:<10}", markup=False),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        # Whatever is left: a narrow terminal wraps notes, and never cuts names.
        TextColumn("{task.fields[note]}", markup=False, table_column=Column(ratio=1)),
    )
    with Progress(*columns, console=console, expand=True) as bars:

        def bar(name: str) -> _Bar:
            return _Bar(bars, name)

        yield bar


class _Bar:
    """A bar on a terminal; satisfies `models.definitions.definition.Progress`."""

    def __init__(self, bars: Progress, name: str) -> None:
        self._bars = bars
        self._task = bars.add_task(name, total=None, note="")

    def __call__(self, done: int, total: int, note: str) -> None:
        self._bars.update(self._task, completed=done, total=total, note=note)


class _Line:
    """A line, printed once the step is over; satisfies `models.definitions.definition.Progress`."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._began = time.monotonic()
        self._status = ""

    def __call__(self, done: int, total: int, note: str) -> None:
        self._status = f"{done}/{total} {note}"

    def close(self) -> None:
        took = dt.timedelta(seconds=round(time.monotonic() - self._began))
        line = f"{self._name:<10} {took} {self._status}"
        self._console.print(Text(line), soft_wrap=True)
