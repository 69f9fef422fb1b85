"""The choice of a table's columns for the input and the id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from app.bulk.errors import BulkError
from models.categories import optional_inputs
from models.codec_specs import TextCodecSpec, categories_of
from models.manifest import Manifest

INPUT, ID = "input", "id"
MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns to read.

    Attributes:
        item: the column with whole items; None if items are assembled from `parts`.
        parts: key of an item -> its column.
        id: the column with ids; None to use row numbers.
        texts: the columns of single categories, whose texts are names and never JSON.
    """

    item: str | None
    parts: dict[str, str]
    id: str | None
    texts: frozenset[str] = frozenset()

    @property
    def inputs(self) -> list[str]:
        """The columns of items."""
        return [self.item] if self.item is not None else list(self.parts.values())

    @property
    def names(self) -> list[str]:
        """All columns."""
        return list(dict.fromkeys(self.inputs + ([self.id] if self.id is not None else [])))

    def item_of(self, row: Mapping[str, object]) -> object:
        """The item of a row, as the codec accepts it from JSON."""
        if self.item is not None:
            return row[self.item]
        parts = {key: row[name] for key, name in self.parts.items()}
        if set(parts) == {"text", "text_pair"}:
            return list(parts.values())
        return {
            key: part if self.parts[key] in self.texts else parsed(part)
            for key, part in parts.items()
        }

    def optional_columns(self, manifest: Manifest) -> list[str]:
        """The columns of inputs that an item may lack."""
        columns = self.columns_of(manifest)
        optional = optional_inputs(manifest.inputs, categories_of(manifest.codec))
        return [
            columns[spec.name] for spec in manifest.inputs if spec.name in optional & set(columns)
        ]

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
    """

    manifest: Manifest
    input: str | None = None
    id: str | None = None

    @property
    def takes_nan(self) -> bool:
        """Whether numbers may be missing."""
        return any(spec.nan for spec in self.manifest.inputs)

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
        twice = [name for name in wanted.names if there.count(name) > 1]
        if twice:
            raise BulkError(f"{where} has duplicate columns {_listed(twice)}: rename or drop them")
        named = {each.input for each in categories_of(self.manifest.codec)}
        columns = wanted.columns_of(self.manifest)
        scalars = {spec.name for spec in self.manifest.inputs if not spec.item_shape}
        texts = frozenset(columns[name] for name in named & scalars & set(columns))
        return replace(wanted, texts=texts) if texts else wanted

    def _wanted(self, there: Sequence[str], where: str, *, sparse: bool) -> Wanted:
        for named in (self.input, self.id):
            if named is not None and named not in there:
                raise BulkError(f"{where} has no column {named!r}; it has {_listed(there)}")
        id_column = self.id or (ID if ID in there else None)
        names = [spec.name for spec in self.manifest.inputs]
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
        optional = optional_inputs(self.manifest.inputs, categories_of(codec)) if sparse else ()
        found = [name for name in parts if name in there]
        if len(parts) > 1 and found and set(parts) <= {*there, *optional}:
            return Wanted(None, {name: name for name in found}, id_column)
        missing = [name for name in parts if name not in there]
        if len(missing) < len(parts):
            raise BulkError(
                f"{where} has no column {_listed(missing)}; it has {_listed(there)}: the model "
                f"needs {_listed(parts)}"
            )
        needs = f"column {' or '.join(map(repr, usual))}"
        if len(names) > 1:
            needs += f", nor the columns {_listed(parts)}"
        raise BulkError(
            f"{where} has no {needs}; it has {_listed(there)}: rename one, or name it with "
            "--input-column"
        )


def is_category(manifest: Manifest) -> bool:
    """Whether an item is the name of one category, and never JSON."""
    inputs = manifest.inputs
    return len(inputs) == 1 and not inputs[0].item_shape and bool(categories_of(manifest.codec))


def parsed(value: object) -> object:
    """Numbers parsed from text, such as "[1, 2]" in CSV; any other value unchanged."""
    if not isinstance(value, str) or value.lstrip()[:1] not in {*"[{-0123456789"}:
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:MOST_SHOWN]]
    return ", ".join(shown + ["..."] * (len(names) > MOST_SHOWN)) or "none"
