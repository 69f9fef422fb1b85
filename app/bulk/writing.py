"""Shards, written atomically: under a temporary name, flushed to the disk, then renamed."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from app.bulk.errors import BulkError
from models.system.durable import replacing, sync

FORMATS = ("parquet", "jsonl")
ERRORS_FILE = "errors.parquet"
ERRORS_SCHEMA = pa.schema([("id", pa.string()), ("row", pa.int64()), ("reason", pa.string())])
GROUP_BYTES = 64 << 20  # of a row group, which a writer keeps in memory


def shard_name(number: int, form: str) -> str:
    """The name of a shard."""
    return f"part-{number:05d}.{form}"


class ShardWriter:
    """Writes one file of tables, which exists only after `commit` has returned.

    Raises:
        BulkError: if the disk is full, or the file cannot be written; nothing is left behind.
    """

    def __init__(self, path: Path, schema: Any) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._schema = schema
        self._tables: list[Any] = []
        self._tables_bytes = 0
        with _clear_errors(path.parent):
            self._file: BinaryIO = self._temporary.open("wb")
        self._parquet: Any = None
        if path.suffix == ".parquet":
            self._parquet = pq.ParquetWriter(self._file, schema)

    def add(self, table: Any) -> None:
        """Write rows."""
        with self._nothing_left_behind():
            if self._parquet is None:
                for row in table.to_pylist():
                    self._file.write(orjson.dumps(row, _as_text, orjson.OPT_APPEND_NEWLINE))
                return
            self._tables.append(table)
            self._tables_bytes += table.nbytes
            if self._tables_bytes >= GROUP_BYTES:
                self._write_group()

    def commit(self) -> tuple[int, str]:
        """Put the file in its place; returns its size and SHA-256."""
        with self._nothing_left_behind():
            if self._parquet is not None:
                self._write_group()
                self._parquet.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            with self._temporary.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            size = self._temporary.stat().st_size
            self._temporary.rename(self._path)
            sync(self._path.parent)
        return size, digest

    def discard(self) -> None:
        """Remove the unfinished file."""
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._parquet is not None:
                self._parquet.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _write_group(self) -> None:
        if self._tables:
            table = pa.concat_tables(self._tables)
            self._tables, self._tables_bytes = [], 0
            self._parquet.write_table(table, row_group_size=max(1, table.num_rows))

    @contextlib.contextmanager
    def _nothing_left_behind(self) -> Iterator[None]:
        try:
            with _clear_errors(self._path.parent):
                yield
        except BaseException:
            self.discard()
            raise


def _as_text(value: object) -> str:
    """A copied value that JSON lacks, such as a decimal: its text, or base64 of bytes."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a small file.

    Raises:
        BulkError: the disk is full, or the file cannot be written.
    """
    with _clear_errors(path.parent), replacing(path) as file:
        file.write(data)


def append(path: Path, data: bytes) -> None:
    """Append to a file, and flush it to the disk.

    Raises:
        BulkError: the disk is full, or the file cannot be written.
    """
    with _clear_errors(path.parent), path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_shard(path: Path, columns: list[str]) -> Iterator[list[dict[str, object]]]:
    """The rows of a shard, in pieces."""
    if path.suffix == ".parquet":
        for batch in pq.ParquetFile(path).iter_batches(4096, columns=columns):
            yield batch.to_pylist()
        return
    with path.open("rb") as lines:
        for line in lines:
            row = orjson.loads(line)
            yield [{name: row[name] for name in columns}]


def write_errors(folder: Path, pieces: Callable[[], Iterator[list[dict[str, object]]]]) -> None:
    """Replace errors.parquet, or remove it if no row is bad.

    `pieces` yields rows of `id`, `row` and `reason`.

    Raises:
        BulkError: if the disk is full, or the file cannot be written.
    """
    writer: ShardWriter | None = None
    for rows in pieces():
        if rows:
            writer = writer or ShardWriter(folder / ERRORS_FILE, ERRORS_SCHEMA)
            writer.add(pa.Table.from_pylist(rows, schema=ERRORS_SCHEMA))
    if writer is not None:
        writer.commit()
        return
    with _clear_errors(folder):
        (folder / ERRORS_FILE).unlink(missing_ok=True)


@contextlib.contextmanager
def _clear_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BulkError(
                f"no space is left for {folder}: free some, then continue with --resume"
            ) from error
        raise BulkError(f"{folder} cannot be written: {error.strerror or error}") from error
