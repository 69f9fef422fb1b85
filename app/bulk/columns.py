"""The choice of a table's columns for the input and the id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import orjson

from app.bulk.errors import BulkError, UsageError
from app.codecs.missing import nan_as_null
from app.codecs.values import misshapen
from models.categories import by_input, optional_inputs
from models.codec_specs import TextCodecSpec, categories_of
from models.manifest import Manifest

INPUT, ID = "input", "id"
ALL_OTHERS = ("*",)
MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns to read.

    Attributes:
        item: the column with whole items; None if items are assembled from `parts`.
        parts: key of an item -> its column.
        id: the column with ids; None to use row numbers.
        texts: the columns of one category each, whose texts are names and never JSON.
        vectors: input -> the columns that are its numbers, in order.
        kept: columns that are copied into the results.
    """

    item: str | None
    parts: dict[str, str]
    id: str | None
    texts: frozenset[str] = frozenset()
    vectors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kept: tuple[str, ...] = ()

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
        return list(dict.fromkeys([*self.inputs, *id_column, *self.kept]))

    def item_of(self, row: Mapping[str, object], *, nan: bool = False) -> object:
        """The item of a row, as the codec accepts it from JSON; for `nan` see `parsed`."""
        if self.item is not None:
            return row[self.item]
        parts = {key: row[name] for key, name in self.parts.items()}
        if set(parts) == {"text", "text_pair"}:
            return list(parts.values())
        item: dict[str, object] = {
            key: part if self.parts[key] in self.texts else parsed(part, nan=nan)
            for key, part in parts.items()
        }
        for key, names in self.vectors.items():
            item[key] = [
                row[name] if name in self.texts else parsed(row[name], nan=nan) for name in names
            ]
        return item

    def optional_columns(self, manifest: Manifest) -> list[str]:
        """The columns whose cells may be empty, of inputs whose numbers may be missing."""
        columns = self.columns_of(manifest)
        optional = optional_inputs(manifest.inputs, categories_of(manifest.codec))
        known = by_input(categories_of(manifest.codec))
        missing = [
            spec.name
            for spec in manifest.inputs
            if spec.name in self.vectors
            and (spec.nan or (spec.name in known and known[spec.name].unknown is not None))
        ]
        whole = [columns[name] for name in optional if name in columns]
        return whole + [column for name in missing for column in self.vectors[name]]

    def columns_of(self, manifest: Manifest) -> Mapping[str, str]:
        """The column of each input that has one."""
        if self.item is None:
            return self.parts
        return {manifest.inputs[0].name: self.item} if len(manifest.inputs) == 1 else {}


ROW_OF_FILES = Wanted(INPUT, {}, ID)  # for sources without a table, or that choose row by row
ROW_OF_ARRAY = Wanted(INPUT, {}, None)


@dataclass(frozen=True, slots=True)
class Chooser:
    """Chooses the columns.

    Attributes:
        manifest: describes the model's inputs.
        input: the column that the user named; None for one of the usual names.
        id: the same for the ids.
        vectors: the columns that the user named for inputs, see `Wanted`.
        kept: the columns to copy into the results; `ALL_OTHERS` for all that are not inputs or ids.
    """

    manifest: Manifest
    input: str | None = None
    id: str | None = None
    vectors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kept: Sequence[str] = ()

    @property
    def takes_nan(self) -> bool:
        """Whether numbers may be missing."""
        return any(spec.nan for spec in self.manifest.inputs)

    @property
    def optional(self) -> frozenset[str]:
        """The inputs that a row may lack."""
        return optional_inputs(self.manifest.inputs, categories_of(self.manifest.codec))

    def choose(self, there: Sequence[str], where: str, *, sparse: bool = False) -> Wanted:
        """The columns to read, chosen from those of the table.

        Args:
            there: the columns.
            where: the table, for messages.
            sparse: whether it is one row, which may lack scalars that may be missing.

        Raises:
            BulkError: if there is no input, or its column exists twice; the message lists the
                columns.
        """
        wanted = self._wanted(there, where, sparse=sparse)
        others = [name for name in there if name not in wanted.names]
        kept = tuple(others) if tuple(self.kept) == ALL_OTHERS else tuple(self.kept)
        if lost := [name for name in kept if name not in there]:
            raise BulkError(f"{where} has no column {listed(lost)}; it has {listed(there)}")
        wanted = replace(wanted, kept=kept)
        twice = [name for name in wanted.names if there.count(name) > 1]
        if twice:
            raise BulkError(f"{where} has duplicate columns {listed(twice)}: rename or drop them")
        named = {each.input for each in categories_of(self.manifest.codec)}
        columns = wanted.columns_of(self.manifest)
        scalars = {spec.name for spec in self.manifest.inputs if not spec.item_shape}
        texts = {columns[name] for name in named & scalars & set(columns)}
        texts.update(*(wanted.vectors[name] for name in named & set(wanted.vectors)))
        return replace(wanted, texts=frozenset(texts)) if texts else wanted

    def _wanted(self, there: Sequence[str], where: str, *, sparse: bool) -> Wanted:
        for named in (self.input, self.id):
            if named is not None and named not in there:
                raise BulkError(f"{where} has no column {named!r}; it has {listed(there)}")
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
            return Wanted(item, {}, id_column)
        parts = names
        if isinstance(codec, TextCodecSpec) and codec.pairs and "text" in there:
            parts = ["text", "text_pair"]
        optional = self.optional if sparse else ()
        found = [name for name in parts if name in there]
        if len(parts) > 1 and found and set(parts) <= {*there, *optional}:
            return Wanted(None, {name: name for name in found}, id_column)
        missing = [name for name in parts if name not in there]
        if len(missing) < len(parts):
            raise BulkError(
                f"{where} has no column {listed(missing)}; it has {listed(there)}: the model "
                f"needs {listed(parts)}"
            )
        needs = f"column {' or '.join(map(repr, usual))}"
        if len(names) > 1:
            needs += f", nor the columns {listed(parts)}"
        raise BulkError(
            f"{where} has no {needs}; it has {listed(there)}: rename one, or name it with "
            "--input-column"
        )

    def _vectors(self, there: Sequence[str], where: str, id_column: str | None) -> Wanted:
        """The columns of vectors, and for the other inputs those of their names."""
        rest = [spec.name for spec in self.manifest.inputs if spec.name not in self.vectors]
        needed = [*rest, *chain.from_iterable(self.vectors.values())]
        if missing := [name for name in needed if name not in there]:
            raise BulkError(f"{where} has no column {listed(missing)}; it has {listed(there)}")
        parts = {name: name for name in rest}
        return Wanted(None, parts, id_column, vectors=self.vectors)


def vectors_of(manifest: Manifest, given: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """The columns for inputs, from options such as `x=age,income`.

    Raises:
        UsageError: if an input is not a vector of as many numbers.
    """
    found: dict[str, tuple[str, ...]] = {}
    specs = {spec.name: spec for spec in manifest.inputs}
    for text in given:
        name, _, rest = text.partition("=")
        columns = tuple(column.strip() for column in rest.split(","))
        if not all(columns) or name in found:
            raise UsageError(
                f"--columns {text!r}: must be the name of an input, =, and its columns, separated "
                "by commas; once for each input"
            )
        spec = specs.get(name)
        if spec is None or manifest.codec.kind != "tensor":
            there = listed([*specs]) if manifest.codec.kind == "tensor" else "not numbers"
            raise UsageError(f"--columns {text!r}: the inputs are {there}")
        if not spec.takes((len(columns),)):
            raise UsageError(f"--columns {text!r}: {misshapen(spec, (len(columns),))}")
        found[name] = columns
    return found


def is_category(manifest: Manifest) -> bool:
    """Whether an item is the name of one category, and never JSON."""
    inputs = manifest.inputs
    return len(inputs) == 1 and not inputs[0].item_shape and bool(categories_of(manifest.codec))


def parsed(value: object, *, nan: bool) -> object:
    """Numbers parsed from text, such as "[1, 2]" in CSV; any other value unchanged.

    With `nan` the word NaN is read as null.
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in {*"[{-0123456789"}:
        return value
    try:
        return orjson.loads(nan_as_null(value.encode()) if nan else value)
    except ValueError:
        return value


def listed(names: Sequence[str]) -> str:
    """Names of columns for messages, of which only some are shown."""
    shown = [repr(name) for name in names[:MOST_SHOWN]]
    return ", ".join(shown + ["..."] * (len(names) > MOST_SHOWN)) or "none"
