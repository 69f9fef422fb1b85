"""Requests and answers of platforms: items as rows, as columns, or as a table; one answer for all.

The protocols that use it differ in their paths, their errors and in what the answer names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from app.api.native.predictions import NativeCall
from app.api.outcomes import failure_of
from app.api.payloads import check_marks, media_type_of, parsed_json
from app.codecs.base import JSON, TEXT, check_count
from app.codecs.tensor import listed
from app.codecs.text import FIRST
from app.codecs.values import short
from app.errors import InvalidInput, ItemFailed
from app.types import Array, Item, Note, Outcome
from models.codec_specs import TextCodecSpec

INSTANCES, INPUTS = "instances", "inputs"
SPLIT, RECORDS = "dataframe_split", "dataframe_records"
TABLE_FIELDS = {"columns", "data", "index"}
ENVELOPE_MARKS = 2000  # the names of fields and columns
FILE = "b64"  # the only key of an object around a file in base64
# Fields that are accepted with these values, because they then change nothing.
WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "signature_name": (None, "", "serving_default"),
    "parameters": (None, {}),
    "params": (None, {}),
}


class InstancesCall(NativeCall):
    """See `Call`: a JSON body has the items in one of several forms; other bodies are native.

    Attributes:
        forms: the names of the forms that the protocol has.
        has_columns: whether `inputs` are answered by column, in `outputs`.
        shows_labels: whether a classifier's prediction is the native one, with its label.
    """

    __slots__ = ("_by_column",)
    forms: ClassVar[tuple[str, ...]] = (INSTANCES, INPUTS)
    has_columns: ClassVar[bool] = True
    shows_labels: ClassVar[bool] = False

    def memo_text(self, body: bytes) -> str | None:
        text = super().memo_text(body)
        return None if text is None else f"{self.endpoint.route}|{text}"

    def read(self, body: bytes) -> list[Item]:
        self._by_column = False
        codec, most = self.model.codec, self.service.limits.max_items
        media_type = media_type_of(codec, self._content_type, body)
        if media_type != JSON:
            count = None if media_type == TEXT else most
            return codec.decode_raw(media_type, body, max_items=count, budget=self.budget())
        if self.on_loop:
            for form in (INSTANCES, INPUTS):
                items = codec.decode_numbers(form, body, max_items=most)
                if items is not None:
                    self._by_column = self.has_columns and form == INPUTS
                    return items
        budget = self.budget()
        budget.read(len(body))
        check_marks(body, codec, most, budget, ENVELOPE_MARKS)
        form, values = self._values(parsed_json(body, nan=codec.takes_nan), most)
        self._by_column = self.has_columns and form == INPUTS
        has_files = codec.files is not None or bool(codec.parts)
        items = []
        for index, value in enumerate(values):
            try:
                items.append(codec.decode(without_wrapper(value) if has_files else value, budget))
            except InvalidInput as error:
                details = [{"index": index, **each} for each in error.details]
                raise InvalidInput(
                    f"{form}[{index}]: {error}", details or [{"index": index}]
                ) from error
        return items

    def _values(self, document: object, most: int) -> tuple[str, Sequence[object]]:
        """The form of a document, and what the codec reads of each item; `most` limits the items.

        Raises:
            InvalidInput: if it has no items, or a field that would have an effect elsewhere.
            PayloadTooLarge: if it has more items.
        """
        wanted = " or ".join(repr(form) for form in self.forms)
        if not isinstance(document, dict):
            raise InvalidInput(f"the body must be a JSON object with {wanted}")
        present = [form for form in self.forms if form in document]
        if len(present) != 1:
            raise InvalidInput(
                f"the body must have exactly one of {wanted}, got {listed(list(document))}"
            )
        form = present[0]
        for name, value in document.items():
            if name != form and value not in WITHOUT_EFFECT.get(name, ()):
                raise InvalidInput(
                    f"{short(name)} is not supported here, and would have an effect: send only "
                    f"{form!r}"
                )
        given = document[form]
        if form == SPLIT:
            return form, self._items_of_rows(*rows_of_table(given, most))
        if form == INPUTS and isinstance(given, dict):
            return form, rows_of_columns(given, most)
        if not isinstance(given, list) or not given:
            raise InvalidInput(f"{form!r} must be a list of at least one item")
        check_count(len(given), most)
        if form == RECORDS:
            return form, self._items_of_rows(*rows_of_records(given))
        return form, given

    def _items_of_rows(self, columns: list[str], rows: Sequence[list[object]]) -> list[object]:
        """What the rows of a table are to the model.

        Texts under names that no input has are those of a text model; the first row decides. Other
        rows are items by name if the columns are the inputs, or if there are several inputs. Else
        the model has one input: the only cell if it is a text, a file or a list, or the numbers of
        all cells.
        """
        manifest = self.model.manifest
        if (
            isinstance(manifest.codec, TextCodecSpec)
            and FIRST not in columns
            and all(isinstance(cell, str) for cell in rows[0])
        ):
            return [row[0] if len(row) == 1 else row for row in rows]
        names = [spec.name for spec in manifest.inputs]
        if len(names) > 1 or columns == names:
            return [dict(zip(columns, row, strict=True)) for row in rows]
        alone = str, list, dict
        return [row[0] if len(row) == 1 and isinstance(row[0], alone) else row for row in rows]

    def document_of(
        self, outcomes: Sequence[Outcome], collect: Callable[[Iterator[object]], object] = list
    ) -> object:
        """See `Answering`; one failed item fails the request, because the form has no errors."""
        if any(isinstance(outcome, ItemFailed) for outcome in outcomes):
            raise failure_of(outcomes)
        if not self._by_column:
            return {"predictions": collect(self._predictions(outcomes))}
        names = [spec.name for spec in self.model.manifest.shown_outputs]
        if self._is_native or len(names) == 1:
            return {"outputs": collect(self._predictions(outcomes))}
        return {"outputs": {name: collect(_column(outcomes, name)) for name in names}}

    @property
    def _is_native(self) -> bool:
        """Whether a prediction is what /predict returns: with labels, or with counted rows."""
        manifest = self.model.manifest
        if any(spec.count is not None for spec in manifest.outputs):
            return True
        return self.shows_labels and manifest.codec.score_labels is not None

    def _predictions(self, outcomes: Sequence[Outcome]) -> Iterator[object]:
        is_native, codec = self._is_native, self.model.codec
        names = [spec.name for spec in self.model.manifest.shown_outputs]
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, ItemFailed):
                raise RuntimeError("bug: a failed item was written")
            if is_native:
                note: Note | None = self.notes[index] if self.notes else None
                yield codec.encode(outcome, None, note)
            elif len(names) == 1:
                yield plain(outcome[names[0]])
            else:
                yield {name: plain(outcome[name]) for name in names}


def _column(outcomes: Sequence[Outcome], name: str) -> Iterator[object]:
    for outcome in outcomes:
        if not isinstance(outcome, ItemFailed):
            yield plain(outcome[name])


def plain(output: Array) -> object:
    """An output as JSON can have it: a contiguous array, or a number if it has no axes."""
    return np.ascontiguousarray(output) if output.ndim else output[()]


def without_wrapper(value: object) -> object:
    """A value without the objects `{"b64": TEXT}` around files, at its top or one level below."""
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and FILE in value:
        return value[FILE]
    return {
        name: each[FILE] if isinstance(each, dict) and len(each) == 1 and FILE in each else each
        for name, each in value.items()
    }


def rows_of_columns(columns: Mapping[str, object], most: int) -> list[object]:
    """The items of inputs by name, each a list with a value for each item.

    Raises:
        InvalidInput: if the lists differ in length, or are empty.
        PayloadTooLarge: if there are more items than allowed.
    """
    lists: dict[str, list[object]] = {}
    for name, values in columns.items():
        if not isinstance(values, list):
            raise InvalidInput(f"{short(name)} in 'inputs' must be a list with a value per item")
        lists[name] = values
    counts = {name: len(values) for name, values in lists.items()}
    count = next(iter(counts.values()), 0)
    if count == 0 or any(each != count for each in counts.values()):
        shown = ", ".join(f"{short(name)}: {each}" for name, each in list(counts.items())[:8])
        raise InvalidInput(
            "'inputs' by name must have lists of the same length of at least 1, got "
            f"{shown or 'none'}"
        )
    check_count(count, most)
    return [{name: values[row] for name, values in lists.items()} for row in range(count)]


def rows_of_table(table: Any, most: int) -> tuple[list[str], list[list[object]]]:
    """The columns and the rows of a table, which pandas writes by `to_dict(orient="split")`.

    Args:
        table: as received.
        most: how many rows are allowed.

    Raises:
        InvalidInput: if it is no table, or a row has another length.
        PayloadTooLarge: if it has more rows.
    """
    table = table if isinstance(table, dict) and table.keys() <= TABLE_FIELDS else {}
    columns, data = table.get("columns"), table.get("data")
    if columns is None and isinstance(data, list) and data and isinstance(data[0], list):
        columns = list(range(len(data[0])))
    if isinstance(columns, list):  # pandas counts columns without names
        columns = [str(name) if type(name) is int else name for name in columns]
    if (
        not isinstance(columns, list)
        or not isinstance(data, list)
        or not data
        or not all(isinstance(name, str) for name in columns)
        or len(set(columns)) < len(columns)
    ):
        raise InvalidInput(
            "'dataframe_split' must be an object with 'columns', a list of different names, "
            "'data', a list of at least one row, and nothing else but 'index'"
        )
    check_count(len(data), most)
    for index, row in enumerate(data):
        if not isinstance(row, list) or len(row) != len(columns):
            raise InvalidInput(
                f"dataframe_split: row {index} must be a list of {len(columns)} values, one for "
                "each column",
                [{"index": index}],
            )
    return columns, data


def rows_of_records(records: Sequence[object]) -> tuple[list[str], list[list[object]]]:
    """The columns and the rows of a table, which pandas writes by `to_dict(orient="records")`.

    The columns have the order of the first row; JSON objects have none.

    Raises:
        InvalidInput: if a row is no object, or has other columns than the first.
    """
    rows = []
    columns: list[str] = list(records[0]) if isinstance(records[0], dict) else []
    for index, record in enumerate(records):
        if not isinstance(record, dict):
            raise InvalidInput(
                f"dataframe_records: row {index} must be an object", [{"index": index}]
            )
        if record.keys() != dict.fromkeys(columns).keys():
            raise InvalidInput(
                f"dataframe_records: row {index} must have the columns of row 0, "
                f"{listed(columns)}; got {listed(list(record))}",
                [{"index": index}],
            )
        rows.append([record[name] for name in columns])
    return columns, rows
