"""The parts of a report: what the terminal prints and the page shows."""

from __future__ import annotations

from dataclasses import dataclass

from models.plan import DevicePlan


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column; numbers stand at its right side."""

    title: str
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A title, sentences, a table, and on a page the plot of what was measured.

    Attributes:
        title: what it is about.
        lines: sentences, above the table.
        columns, rows: the table; a cell may have several lines.
        measured: the device whose times are to be plotted.
    """

    title: str
    lines: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    measured: DevicePlan | None = None
