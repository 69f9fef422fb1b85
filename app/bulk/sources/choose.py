"""The source for each format of input: a literal table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeAlias

from app.bulk.blocks import RowSource
from app.bulk.columns import ROW_OF_ARRAY, ROW_OF_FILES, Chooser, ColumnChoice, ColumnChooser
from app.bulk.errors import UsageError
from app.bulk.inputs import Inputs
from app.bulk.sources.arrays import ArraySource
from app.bulk.sources.cells import CsvSource
from app.bulk.sources.lines import LinesSource
from app.bulk.sources.paths import PathSource
from app.bulk.sources.tables import ParquetSource

# A source, and the columns of its rows.
SourceAndChoice: TypeAlias = tuple[RowSource, ColumnChoice]


def _parquet(inputs: Inputs, chooser: ColumnChooser, _: BinaryIO) -> SourceAndChoice:
    source = ParquetSource(inputs.files, chooser)
    return source, source.choice


def _csv(inputs: Inputs, chooser: ColumnChooser, _: BinaryIO) -> SourceAndChoice:
    source = CsvSource(inputs.files, chooser)
    return source, source.choice


def _lines(inputs: Inputs, chooser: ColumnChooser, stream: BinaryIO) -> SourceAndChoice:
    if chooser.extra_columns:
        raise UsageError("--keep works with Parquet and CSV only")
    return LinesSource(inputs.files, chooser, stream), ROW_OF_FILES


def _paths(inputs: Inputs, chooser: ColumnChooser, _: BinaryIO) -> SourceAndChoice:
    _check_no_columns(chooser, inputs.format)
    return PathSource(inputs.files, inputs.ids), ROW_OF_FILES


def _arrays(inputs: Inputs, chooser: ColumnChooser, _: BinaryIO) -> SourceAndChoice:
    _check_no_columns(chooser, ".npy files")
    if not isinstance(chooser, Chooser):
        raise UsageError("a handler takes no .npy files: write the rows as JSON Lines or Parquet")
    return ArraySource(inputs.files, chooser.manifest), ROW_OF_ARRAY


def _check_no_columns(chooser: ColumnChooser, files: str) -> None:
    if chooser.input is not None or chooser.id is not None:
        raise UsageError(f"--input-column, --id-column: {files} have no columns")
    if chooser.vectors or chooser.extra_columns:
        raise UsageError(f"--columns, --keep: {files} have no columns")


SOURCES: dict[str, Callable[[Inputs, ColumnChooser, BinaryIO], SourceAndChoice]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _lines,
    "stream": _lines,
    "pictures": _paths,
    "sounds": _paths,
    "npy": _arrays,
}


def open_source(inputs: Inputs, chooser: ColumnChooser, stream: BinaryIO) -> SourceAndChoice:
    """Open the inputs of a run.

    Raises:
        BulkError: a file cannot be read, or lacks a column.
    """
    return SOURCES[inputs.format](inputs, chooser, stream)


def folder_of(inputs: Inputs) -> Path:
    """The base of relative file names in rows."""
    return inputs.files[0].parent if inputs.files else Path()
