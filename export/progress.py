"""Shows the progress of long commands: a bar for each step, or a line without a terminal."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from export.proving.prove import Stage

COLUMNS = (
    TextColumn("{task.description}", markup=False, table_column=Column(min_width=13, no_wrap=True)),
    BarColumn(bar_width=10),
    MofNCompleteColumn(table_column=Column(min_width=5)),
    TimeElapsedColumn(),
    TimeRemainingColumn(compact=True),
)
BAR_COLUMNS = 46  # columns of a terminal
INDENT = "  "
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
    with _Bars(*COLUMNS, _NoteColumn(console), console=console, expand=True) as bars:

        def bar(name: str) -> _Bar:
            return _Bar(bars, name)

        yield bar


class _NoteColumn(ProgressColumn):
    """The note of a step, if it fits beside the bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        super().__init__(table_column=Column(ratio=1))

    def render(self, task: Task) -> Text:
        note = str(task.fields["note"])
        return Text("" if _is_long(note, self._console) else note)


class _Bars(Progress):
    """A line per step; a note that does not fit beside the bar has lines of its own below."""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the lines of all steps, each as wide as the terminal is now."""
        for task in self.tasks:
            yield self.make_tasks_table([task])
            note = str(task.fields["note"])
            if _is_long(note, self.console):
                wrapped = textwrap.wrap(note, self.console.width - 2 * len(INDENT))
                yield Text(INDENT + f"\n{2 * INDENT}".join(wrapped))


def _is_long(note: str, console: Console) -> bool:
    return len(note) > console.width - BAR_COLUMNS


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
