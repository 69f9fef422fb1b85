"""The progress display of long commands: a line for each step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from export.pipeline import Stage


@contextlib.contextmanager
def shown_on(console: Console) -> Iterator[Stage]:
    """Gives what is told of each step that begins."""
    columns = (
        TextColumn("{task.description:<10}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console) as bars:

        def stage(name: str) -> _Bar:
            return _Bar(bars, name)

        yield stage


class _Bar:
    """A line of the progress display; satisfies `models.definitions.definition.Progress`."""

    def __init__(self, bars: Progress, name: str) -> None:
        self._bars = bars
        self._task = bars.add_task(name, total=None, note="")

    def __call__(self, done: int, total: int, note: str) -> None:
        self._bars.update(self._task, completed=done, total=total, note=note)
