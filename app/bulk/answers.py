"""Conversion of a scored block to a table: `id`, `row`, the prediction, `error`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from app.bulk.errors import BulkError
from app.bulk.scoring import ScoredBlock
from app.bulk.tables import NO_COLUMNS, schema_of, table_of
from app.codecs.answers import highest
from app.codecs.base import Codec
from app.types import Array, Arrays
from models.codec_specs import TextCodecSpec
from models.manifest import Manifest
from models.rows import answer_outputs
from models.tensors import TensorSpec

MAX_MAPPED_BYTES = 1 << 30  # of the masks of a block, which are written together

OWN = {"id", "row", "error", "label", "score", "labels", "scores", "indices", "spans", "cut"}
SPAN = [
    ("label", pa.string()),
    ("score", pa.float64()),
    ("start", pa.int64()),
    ("end", pa.int64()),
    ("text", pa.string()),
]

IMAGE = pa.struct(
    [
        ("width", pa.int64()),
        ("height", pa.int64()),
        ("scale", pa.list_(pa.float64())),
        ("offset", pa.list_(pa.float64())),
    ]
)

# Creates the columns of the prediction, with a row for each row computed without failure.
Fill = Callable[[ScoredBlock, Sequence[int]], list[Any]]


class Answers:
    """Creates the tables of one run, which all have the same schema.

    Args:
        top_k: how many of the highest scores; None for the manifest's number.
        integer_ids: whether ids are whole numbers.
        extra_columns: columns of the input that are copied, and their Arrow types.
    """

    def __init__(
        self,
        manifest: Manifest,
        codec: Codec,
        top_k: int | None,
        *,
        integer_ids: bool,
        extra_columns: Mapping[str, Any] = NO_COLUMNS,
    ) -> None:
        self._codec = codec
        self._outputs = answer_outputs(manifest.outputs)
        first, spec = self._outputs[0], manifest.codec
        self._labels = spec.score_labels if len(first.item_shape) == 1 else None
        self._top_k = top_k or spec.top_k
        self._has_scores = self._labels is not None or self._top_k is not None
        self._of_tokens = isinstance(spec, TextCodecSpec) and spec.of_tokens
        has_counts = any(each.count is not None for each in manifest.outputs)
        is_ranked = spec.ranked_by is not None or spec.classes is not None
        self._of_rows = has_counts or is_ranked
        self._has_classes = spec.classes is not None
        self._cuts = isinstance(spec, TextCodecSpec)
        self._places = codec.places
        self._own = OWN if codec.places is None else OWN | {"image"}
        fields = self._fields()
        self._answer_names = [name for name, _ in fields if not (self._cuts and name == "cut")]
        self.schema = schema_of(fields, integer_ids=integer_ids, extra_columns=extra_columns)

    def table(self, scored_block: ScoredBlock) -> Any:
        """A row for each row of the block, in order; rows with an error have no prediction."""
        block = scored_block.block
        count = len(block)
        computed_rows = np.arange(scored_block.computed_count)
        if scored_block.failures:
            computed_rows = np.delete(computed_rows, sorted(scored_block.failures))
        place = scored_block.place
        if scored_block.outputs is not None and not (
            self._of_tokens or self._of_rows or self._places
        ):
            columns = self._whole(scored_block.outputs, computed_rows, scored_block.computed_count)
        elif self._of_tokens or self._places is not None:
            # Equal items may be of texts or pictures that differ: each row has its own answer.
            good = np.flatnonzero(~np.isin(place, sorted(scored_block.failures)))
            columns = self._one_by_one(scored_block, place[good], good)
            place, computed_rows = np.arange(len(place)), good
        else:
            columns = self._one_by_one(scored_block, computed_rows, computed_rows)
        if self._cuts and block.items is not None:
            notes = [item.note for item in block.items]
            cut_counts = np.zeros(count, np.int64)
            cut_counts[block.good] = [note.cut if note is not None else 0 for note in notes]
        row_of = np.full(max(scored_block.computed_count, len(place)), -1, np.int64)
        row_of[computed_rows] = np.arange(len(computed_rows))
        rows = np.full(count, -1, np.int64)
        rows[block.good] = row_of[place] if len(place) else -1
        errors = pa.nulls(count, pa.string())
        if (rows < 0).any():
            errors = pa.array(_errors(scored_block, rows), pa.string())
        predictions = self._take(columns, rows)
        if self._cuts:
            cuts = cut_counts if block.items is not None else np.zeros(count, np.int64)
            predictions.append(pa.array(cuts, pa.int32(), mask=rows < 0))
        return table_of(block, predictions, errors, self.schema)

    @staticmethod
    def _take(columns: Sequence[Any], rows: Array) -> list[Any]:
        if np.array_equal(rows, np.arange(len(rows))):
            return [column.slice(0, len(rows)) for column in columns]
        indices = pa.array(rows, mask=rows < 0)
        return [column.take(indices) for column in columns]

    def _fields(self) -> list[tuple[str, Any]]:
        first, *others = self._outputs
        last = [("cut", pa.int32())] if self._cuts else []
        if self._places is not None:
            last = [("image", IMAGE)]
        columns = [(self._column_of(spec.name), _type(spec)) for spec in others]
        dtype = pa.from_numpy_dtype(np.dtype(first.dtype))
        if self._of_tokens:
            return [("spans", pa.list_(pa.struct(SPAN))), *columns, *last]
        if self._of_rows:
            labels = [("labels", pa.list_(pa.string()))] if self._has_classes else []
            return [(self._column_of(first.name), _type(first)), *columns, *labels, *last]
        if self._labels is not None:
            best = [("label", pa.string()), ("score", dtype)]
            if self._top_k is not None:
                best += [("labels", pa.list_(pa.string())), ("scores", pa.list_(dtype))]
            return [*best, *columns, *last]
        indices = [("indices", pa.list_(pa.int64()))] if self._top_k is not None else []
        return [(self._column_of(first.name), _type(first)), *indices, *columns, *last]

    def _whole(self, outputs: Arrays, computed_rows: Array, count: int) -> list[Any]:
        """The columns from whole arrays, if no row needs its own treatment."""
        if len(computed_rows) < count:
            outputs = {name: array[computed_rows] for name, array in outputs.items()}
        first, *others = self._outputs
        scores = outputs[first.name]
        columns: list[Any] = []
        if self._top_k is not None:
            tops = [highest(each, self._top_k) for each in scores]
            best = [row[top] for row, top in zip(scores, tops, strict=True)]
            if self._labels is not None:
                labels = [[self._labels[at] for at in top.tolist()] for top in tops]
                columns = [
                    pa.array([each[0] for each in labels], pa.string()),
                    pa.array([each[0] for each in best], pa.from_numpy_dtype(scores.dtype)),
                    pa.array(labels, pa.list_(pa.string())),
                    pa.array(best, pa.list_(pa.from_numpy_dtype(scores.dtype))),
                ]
            else:
                columns = [
                    pa.array(best, pa.list_(pa.from_numpy_dtype(scores.dtype))),
                    pa.array(tops, pa.list_(pa.int64())),
                ]
        elif self._labels is not None:
            winner = scores.argmax(axis=1) if len(scores) else np.zeros(0, np.int64)
            names = pa.array(self._labels, pa.string())
            columns = [
                names.take(pa.array(winner)),
                pa.array(np.take_along_axis(scores, winner[:, None], axis=1)[:, 0]),
            ]
        else:
            columns = [nest(scores)]
        return columns + [nest(outputs[spec.name]) for spec in others]

    def _one_by_one(
        self, scored_block: ScoredBlock, computed_rows: Array, items: Array
    ) -> list[Any]:
        """The columns from answers as over HTTP.

        Args:
            scored_block: the block.
            computed_rows: for each answer, the index of its computed row.
            items: for each answer, the index of its good row.
        """
        block = scored_block.block
        columns: list[list[Any]] = [[] for _ in self._answer_names]
        mapped_bytes = 0
        for at, good in zip(computed_rows.tolist(), items.tolist(), strict=True):
            if scored_block.outcomes is not None:
                outputs = scored_block.outcomes[at]
            else:
                outputs = {name: array[at] for name, array in (scored_block.outputs or {}).items()}
            if isinstance(outputs, Exception):
                raise TypeError("bug: a failed row is encoded")
            note = block.items[good].note if block.items is not None else None
            if self._places is not None and note is not None and note.image is not None:
                outputs = self._codec.chosen(outputs, self._top_k)
                mapped_bytes += self._places.nbytes(outputs, note.image)
                if mapped_bytes > MAX_MAPPED_BYTES:
                    raise BulkError(
                        f"masks in the size of the pictures take more than {MAX_MAPPED_BYTES:,} "
                        f"bytes for {len(items)} pictures: use smaller ones, or a model that "
                        "returns classes as uint8 instead of a score for each class"
                    )
                outputs = self._places.mapped(outputs, note.image)
            answer = self._codec.encode(outputs, self._top_k, note)
            for name, column in zip(self._answer_names, columns, strict=True):
                column.append(self._value_of(answer, name))
        return [
            nest_ragged(column)
            if column and isinstance(column[0], np.ndarray)
            else pa.array(column, self.schema.field(name).type)
            for name, column in zip(self._answer_names, columns, strict=True)
        ]

    def _value_of(self, answer: dict[str, object], name: str) -> object:
        """The value of a column in an answer; an array if it has several axes."""
        outputs = answer.get("outputs")
        if name in answer and name != "outputs":
            value: Any = answer[name]
        elif isinstance(outputs, dict):
            value = next(
                (each for key, each in outputs.items() if self._column_of(key) == name), None
            )
        else:
            value = None
        if isinstance(value, np.ndarray) and value.ndim > 1:
            return value
        return value.tolist() if isinstance(value, np.ndarray | np.generic) else value

    def _column_of(self, output: str) -> str:
        """The column of an output; a name that another column has gets a suffix."""
        return f"{output}_output" if output in self._own else output


def _errors(scored_block: ScoredBlock, rows: Array) -> list[str | None]:
    """Errors of rows that could not be decoded, or on which the model failed."""
    block = scored_block.block
    errors = [block.errors.get(row) for row in range(len(block))]
    for row in np.flatnonzero(rows < 0).tolist():
        if errors[row] is None:
            errors[row] = scored_block.failures[
                int(scored_block.place[np.searchsorted(block.good, row)])
            ]
    return errors


def nest(array: Array) -> Any:
    """An array [n, ...] as lists of its rows, without a Python object for each."""
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    count = array.size
    for size in reversed(array.shape[1:]):
        count = count // size if size else math.prod(array.shape[:-1])
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
        flat = pa.ListArray.from_arrays(pa.array(offsets), flat)
    return flat


def nest_ragged(arrays: Sequence[Array]) -> Any:
    """Arrays with equally many axes, whose sizes may differ, as lists of their rows."""
    flat = pa.array(np.concatenate([array.reshape(-1) for array in arrays]))
    for axis in range(arrays[0].ndim - 1, -1, -1):
        sizes = [array.shape[axis] for array in arrays]
        counts = [math.prod(array.shape[:axis]) for array in arrays]
        offsets = np.concatenate(([0], np.cumsum(np.repeat(sizes, counts))))
        flat = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)
    return flat


def _type(spec: TensorSpec) -> Any:
    kind = pa.from_numpy_dtype(np.dtype(spec.dtype))
    for _ in spec.item_shape:
        kind = pa.list_(kind)
    return kind
