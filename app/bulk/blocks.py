"""Blocks: rows that are decoded, scored and written together, independently of other blocks.

Chunks are rows in a source's form; a block of chunks is decoded into arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeAlias

from app.bulk.errors import BulkError
from app.types import Array, Arrays, Item
from models.manifest import Manifest

# Ids of rows: an array of whole numbers, or a list of whole numbers or of texts.
Ids: TypeAlias = Array | Sequence[int] | Sequence[str]

MAX_ROWS = 4096
MAX_FILES = 256
BLOCK_BYTES = 4 << 20  # of decoded inputs; larger blocks exceed the processor's caches
RAW_BYTES = 16 << 20  # of a block before decoding; each decoding process has several


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of some rows.

    Attributes:
        values: name -> a list, an array whose first axis counts rows, or an Arrow array.
        errors: row -> the reason why it has no values.
    """

    values: Mapping[str, Any]
    errors: Mapping[int, str] = field(default_factory=dict)


class Chunk(Protocol):
    """Rows in a source's form; cheap to send to another process."""

    def __len__(self) -> int: ...

    def cut(self, start: int, stop: int) -> Self:
        """The rows from `start` up to `stop`."""

    def join(self, others: Sequence[Self]) -> Self:
        """These rows, then the rows of the others."""

    def columns(self) -> Columns:
        """Read the rows."""

    def add_to(self, digest: hashlib._Hash) -> None:
        """Add the rows to a digest, for streams."""


class RowSource(Protocol):
    """A source of rows.

    Attributes:
        total: number of rows; None if not known before the end.
        is_stream: whether it can be read only once, and only from its beginning.
        integer_ids: whether the ids are whole numbers.
        has_numbers: whether the inputs are columns of numbers, which are quick to decode.
        extra_columns: the columns that are copied into the results, and their Arrow types.
        row_bytes: approximate size of a large row before decoding; 0 if it is not known, or not
            much larger than the decoded row.
    """

    total: int | None
    is_stream: bool
    integer_ids: bool
    has_numbers: bool
    extra_columns: Mapping[str, Any]
    row_bytes: int

    def chunks(self, first: int, rows: int) -> Iterator[Chunk]:
        """The rows from `first` on.

        Args:
            first: row number.
            rows: approximate number of rows in a chunk.

        Raises:
            BulkError: if a file cannot be read.
        """


@dataclass(frozen=True, slots=True)
class BlockBounds:
    """Where blocks end: a function of the row number, so that a resumed run cuts the same blocks.

    Attributes:
        rows: maximum number of rows in a block.
        per_shard: rows of a shard; no block extends beyond its end.
    """

    rows: int
    per_shard: int

    def end(self, first: int) -> int:
        """The end of the block that begins with row `first`."""
        return min(first + self.rows, (first // self.per_shard + 1) * self.per_shard)


@dataclass(frozen=True, slots=True)
class RawBlock:
    """Rows that become a block.

    Attributes:
        first: number of the first row.
        chunk: the rows.
        digest: digest of a stream up to the end of the block; empty for files.
    """

    first: int
    chunk: Chunk
    digest: str = ""


@dataclass(slots=True)
class Block:
    """Decoded rows: either `arrays` or `items`.

    Attributes:
        first: number of the first row.
        ids: one for each row, whole numbers or texts.
        good: the rows that could be decoded, ascending, as positions in the block.
        errors: position -> the reason why a row could not be decoded.
        arrays: input name -> array [len(good), *shape], if all rows have the same shape.
        items: one for each good row, if shapes differ.
        digest: see `RawBlock`.
        decode_s: seconds spent reading columns and decoding.
        extra_columns: columns that are copied into the results, as they were read.
    """

    first: int
    ids: Ids
    good: Array
    errors: dict[int, str]
    arrays: Arrays | None
    items: list[Item] | None
    digest: str = ""
    decode_s: float = 0.0
    extra_columns: Sequence[Any] = ()

    def __len__(self) -> int:
        return len(self.ids)


def rows_of_block(manifest: Manifest, batch: int, row_bytes: int, *, encoded: bool) -> int:
    """How many rows to decode together: whole batches, as many as fit into BLOCK_BYTES.

    Fewer if they exceed RAW_BYTES before decoding, and then possibly less than a batch.

    Args:
        manifest: the model's manifest.
        batch: items of a forward.
        row_bytes: see `RowSource`.
        encoded: whether rows are pictures, whose files may be larger than their decoded arrays.
    """
    nbytes = sum(
        spec.item_bytes
        if spec.is_fixed
        else spec.model_copy(
            update={"shape": (-1, *(axis.most for axis in spec.axes)), "dimensions": ()}
        ).item_bytes
        for spec in manifest.inputs
    )
    fits = min(MAX_FILES if encoded else MAX_ROWS, BLOCK_BYTES // max(1, nbytes))
    rows = max(1, fits // batch) * batch
    most = max(1, RAW_BYTES // max(1, row_bytes))
    return min(rows, most // batch * batch or most)


def raw_blocks(
    source: RowSource,
    first: int,
    bounds: BlockBounds,
    stop: int | None = None,
    skipped_digest: str = "",
) -> Iterator[RawBlock]:
    """The blocks of a source, from row `first` on.

    Args:
        source: the rows.
        first: the beginning of a shard.
        bounds: where blocks end.
        stop: the first row that is left out; None to read all rows.
        skipped_digest: for a stream that was already read up to `first`, its digest up to there.

    Raises:
        BulkError: if a file cannot be read, or the stream is a different one.
    """
    digest = hashlib.sha256() if source.is_stream else None
    at = 0 if digest is not None else first
    parts: list[Chunk] = []
    have = 0

    def end_of(at: int) -> int:
        end = min(bounds.end(at), first) if at < first else bounds.end(at)
        return end if stop is None else min(end, stop)

    rows = min(bounds.rows, bounds.per_shard)
    if stop is not None:  # a stream may stay open: request no more rows than are wanted
        rows = min(rows, max(1, stop - at))
    for chunk in source.chunks(at, rows):
        parts.append(chunk)
        have += len(chunk)
        while have >= (row_count := end_of(at) - at) > 0:
            whole = parts[0].join(parts[1:])
            raw = _block(at, whole.cut(0, row_count), digest)
            rest = whole.cut(row_count, have)
            parts, have = ([rest], len(rest)) if len(rest) else ([], 0)
            at += row_count
            if raw.first >= first:
                if digest is not None and raw.first == first:
                    _check_whole(first, bounds)
                yield raw
            elif at == first and raw.digest != skipped_digest:
                raise _other_stream()
        if end_of(at) <= at:
            return
    if at < first:
        raise _other_stream()
    if have:
        if digest is not None and at == first:
            _check_whole(first, bounds)
        yield _block(at, parts[0].join(parts[1:]), digest)


def _block(first: int, chunk: Chunk, digest: hashlib._Hash | None) -> RawBlock:
    if digest is None:
        return RawBlock(first, chunk)
    chunk.add_to(digest)
    return RawBlock(first, chunk, digest.hexdigest())


def _check_whole(first: int, bounds: BlockBounds) -> None:
    """Check that a stream continues only after a full shard: otherwise it had ended there."""
    if first % bounds.per_shard:
        raise BulkError(
            f"standard input had ended after {first} rows but now continues: start again in "
            "another folder"
        )


def _other_stream() -> BulkError:
    return BulkError(
        "standard input differs from what was read before: resume with the same rows from the start"
    )
