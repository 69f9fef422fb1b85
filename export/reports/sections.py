"""The parts of a report, printed on the terminal and shown on the page."""

from __future__ import annotations

from dataclasses import dataclass

from models.manifest import TrainedEpoch
from models.plan import DevicePlan


@dataclass(frozen=True, slots=True)
class Column:
    """The header of a column; numbers are aligned to the right."""

    title: str
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A title, sentences, a table, and on the page a plot.

    Attributes:
        lines: sentences, above the table.
        columns, rows: the table; a cell may have several lines.
        device: the device whose times are plotted.
        epochs: the epochs whose curves are plotted.
    """

    title: str
    lines: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    device: DevicePlan | None = None
    epochs: tuple[TrainedEpoch, ...] = ()
