"""The choice of a table's columns for the input and the id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol, Self

import orjson

from app.bulk.errors import BulkError
from app.codecs.missing import nan_as_null
from app.codecs.values import short
from app.errors import InvalidInput
from models.categories import by_input, optional_inputs
from models.codec_specs import TextCodecSpec, categories_of
from models.manifest import Manifest
from models.tensors import TensorSpec

INPUT, ID = "input", "id"
ALL_OTHERS = ("*",)
MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """The columns to read.

    Attributes:
        item: the column with whole items; None if items are assembled from `parts`.
        parts: key of an item -> its column.
        id: the column with ids; None to use row numbers.
        texts: the columns of one category each, whose texts are names and never JSON.
        vectors: input -> the columns that are its numbers, in order.
        extra_columns: columns that are copied into the results.
    """

    item: str | None
    parts: dict[str, str]
    id: str | None
    texts: frozenset[str] = frozenset()
    vectors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra_columns: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[str]:
        """The columns of items."""
        if self.item is not None:
            return [self.item]
        vectors = chain.from_iterable(self.vectors.values())
        return list(dict.fromkeys([*self.parts.values(), *vectors]))

    @property
    def names(self) -> list[str]:
        """All columns."""
        id_column = [self.id] if self.id is not None else []
        return list(dict.fromkeys([*self.inputs, *id_column, *self.extra_columns]))

    def item_of(self, row: Mapping[str, object], *, nan: bool = False) -> object:
        """The item of a row, as the codec accepts it from JSON; for `nan` see `parse_numbers`.

        Raises:
            InvalidInput: a column of a vector has a text that is no number.
        """
        if self.item is not None:
            return row[self.item]
        parts = {key: row[name] for key, name in self.parts.items()}
        if set(parts) == {"text", "text_pair"}:
            return list(parts.values())
        item: dict[str, object] = {
            key: part if self.parts[key] in self.texts else parse_numbers(part, nan=nan)
            for key, part in parts.items()
        }
        for key, names in self.vectors.items():
            item[key] = [
                row[name] if name in self.texts else _number(name, row[name], nan=nan)
                for name in names
            ]
        return item

    def optional_columns(self, manifest: Manifest) -> list[str]:
        """The columns whose cells may be empty, of inputs whose numbers may be missing."""
        columns = self.columns_of(manifest.inputs)
        optional = optional_inputs(manifest.inputs, categories_of(manifest.codec))
        categories = by_input(categories_of(manifest.codec))
        missing = [
            spec.name
            for spec in manifest.inputs
            if spec.name in self.vectors
            and (
                spec.nan or (spec.name in categories and categories[spec.name].unknown is not None)
            )
        ]
        whole = [columns[name] for name in optional if name in columns]
        return whole + [column for name in missing for column in self.vectors[name]]

    def columns_of(self, specs: Sequence[TensorSpec]) -> Mapping[str, str]:
        """The column of each input that has one."""
        if self.item is None:
            return self.parts
        return {specs[0].name: self.item} if len(specs) == 1 else {}


ROW_OF_FILES = ColumnChoice(INPUT, {}, ID)  # for sources without a table, or that choose row by row
ROW_OF_ARRAY = ColumnChoice(INPUT, {}, None)


class ColumnChooser(Protocol):
    """Chooses the columns of a table, for a model or a handler.

    Attributes:
        input: the column that the user named; None for one of the usual names.
        id: the same for the ids.
        vectors: the columns that the user named for inputs, see `ColumnChoice`.
        extra_columns: the columns to copy into the results.
        specs: the inputs, of which the columns are known to be; empty if nothing is known.
        takes_nan: whether numbers may be missing.
        optional: the inputs that a row may lack.
    """

    @property
    def input(self) -> str | None: ...
    @property
    def id(self) -> str | None: ...
    @property
    def vectors(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def extra_columns(self) -> Sequence[str]: ...
    @property
    def specs(self) -> Sequence[TensorSpec]: ...
    @property
    def takes_nan(self) -> bool: ...
    @property
    def optional(self) -> frozenset[str]: ...

    def choose(self, there: Sequence[str], where: str, *, sparse: bool = False) -> ColumnChoice:
        """See `Chooser.choose`."""

    def without_id(self) -> Self:
        """The same, for a table that may have no ids."""


@dataclass(frozen=True, slots=True)
class Chooser:
    """Chooses the columns for a model.

    Attributes:
        manifest: describes the model's inputs.
        input: the column that the user named; None for one of the usual names.
        id: the same for the ids.
        vectors: the columns that the user named for inputs, see `ColumnChoice`.
        extra_columns: the columns to copy into the results; `ALL_OTHERS`: all but inputs and ids.
    """

    manifest: Manifest
    input: str | None = None
    id: str | None = None
    vectors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra_columns: Sequence[str] = ()

    @property
    def specs(self) -> Sequence[TensorSpec]:
        return self.manifest.inputs

    def without_id(self) -> Self:
        return replace(self, id=None)

    @property
    def takes_nan(self) -> bool:
        """Whether numbers may be missing."""
        return any(spec.nan for spec in self.manifest.inputs)

    @property
    def optional(self) -> frozenset[str]:
        """The inputs that a row may lack."""
        return optional_inputs(self.manifest.inputs, categories_of(self.manifest.codec))

    def choose(self, there: Sequence[str], where: str, *, sparse: bool = False) -> ColumnChoice:
        """The columns to read, chosen from those of the table.

        Args:
            there: the columns.
            where: the table, for messages.
            sparse: whether it is one row, which may lack scalars that may be missing.

        Raises:
            BulkError: if there is no input, or its column exists twice; the message lists the
                columns.
        """
        choice = self._choose(there, where, sparse=sparse)
        choice = with_extra(choice, self.extra_columns, there, where)
        with_categories = {each.input for each in categories_of(self.manifest.codec)}
        columns = choice.columns_of(self.manifest.inputs)
        scalars = {spec.name for spec in self.manifest.inputs if not spec.item_shape}
        texts = {columns[name] for name in with_categories & scalars & set(columns)}
        texts.update(*(choice.vectors[name] for name in with_categories & set(choice.vectors)))
        return replace(choice, texts=frozenset(texts)) if texts else choice

    def _choose(self, there: Sequence[str], where: str, *, sparse: bool) -> ColumnChoice:
        check_named((self.input, self.id), there, where)
        id_column = self.id or (ID if ID in there else None)
        names = [spec.name for spec in self.manifest.inputs]
        if self.vectors:
            return self._vectors(there, where, id_column)
        usual = [INPUT, *names] if len(names) == 1 else [INPUT]
        codec = self.manifest.codec
        if isinstance(codec, TextCodecSpec) and not codec.pairs:
            usual.append("text")
        item = self.input or next((name for name in usual if name in there), None)
        if item is not None:
            return ColumnChoice(item, {}, id_column)
        parts = names
        if isinstance(codec, TextCodecSpec) and codec.pairs and "text" in there:
            parts = ["text", "text_pair"]
        optional = self.optional if sparse else ()
        present = [name for name in parts if name in there]
        if len(parts) > 1 and present and set(parts) <= {*there, *optional}:
            return ColumnChoice(None, {name: name for name in present}, id_column)
        missing = [name for name in parts if name not in there]
        if len(missing) < len(parts):
            raise BulkError(
                f"{where} has no column {list_names(missing)}; it has {list_names(there)}: the "
                f"model needs {list_names(parts)}"
            )
        needs = f"column {' or '.join(map(repr, dict.fromkeys(usual)))}"
        if len(names) > 1:
            needs += f", nor the columns {list_names(parts)}"
        raise BulkError(
            f"{where} has no {needs}; it has {list_names(there)}: rename one, or name it with "
            "--input-column"
        )

    def _vectors(self, there: Sequence[str], where: str, id_column: str | None) -> ColumnChoice:
        """The columns of vectors, and for the other inputs those of their names."""
        rest = [spec.name for spec in self.manifest.inputs if spec.name not in self.vectors]
        columns = [*rest, *chain.from_iterable(self.vectors.values())]
        if missing := [name for name in columns if name not in there]:
            raise BulkError(
                f"{where} has no column {list_names(missing)}; it has {list_names(there)}"
            )
        parts = {name: name for name in rest}
        return ColumnChoice(None, parts, id_column, vectors=self.vectors)


def check_named(names: Sequence[str | None], there: Sequence[str], where: str) -> None:
    """Check that the columns that the user named exist.

    Raises:
        BulkError: with those that do.
    """
    for name in names:
        if name is not None and name not in there:
            raise BulkError(f"{where} has no column {name!r}; it has {list_names(there)}")


def with_extra(
    choice: ColumnChoice, extra: Sequence[str], there: Sequence[str], where: str
) -> ColumnChoice:
    """The choice, with the columns to copy.

    Raises:
        BulkError: if a column does not exist, or exists twice.
    """
    others = [name for name in there if name not in choice.names]
    names = tuple(others) if tuple(extra) == ALL_OTHERS else tuple(extra)
    if unknown := [name for name in names if name not in there]:
        raise BulkError(f"{where} has no column {list_names(unknown)}; it has {list_names(there)}")
    choice = replace(choice, extra_columns=names)
    twice = [name for name in choice.names if there.count(name) > 1]
    if twice:
        raise BulkError(f"{where} has duplicate columns {list_names(twice)}: rename or drop them")
    return choice


def is_category(manifest: Manifest) -> bool:
    """Whether an item is the name of one category, and never JSON."""
    inputs = manifest.inputs
    return len(inputs) == 1 and not inputs[0].item_shape and bool(categories_of(manifest.codec))


def parse_numbers(value: object, *, nan: bool) -> object:
    """Numbers parsed from text, such as "[1, 2]" in CSV; any other value unchanged.

    With `nan` the word NaN is read as null.
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in {*"[{-0123456789"}:
        return value
    try:
        return orjson.loads(nan_as_null(value.encode()) if nan else value)
    except ValueError:
        return value


def _number(name: str, value: object, *, nan: bool) -> object:
    """A number of a vector; see `parse_numbers`."""
    number = parse_numbers(value, nan=nan)
    if isinstance(number, str):
        raise InvalidInput(
            f"{name!r}: expected a number as in JSON, such as 0.5 or -1e3, got {short(number)}"
        )
    return number


def list_names(names: Sequence[str]) -> str:
    """Names of columns for messages, of which only some are shown."""
    parts = [repr(name) for name in names[:MOST_SHOWN]]
    return ", ".join(parts + ["..."] * (len(names) > MOST_SHOWN)) or "none"
