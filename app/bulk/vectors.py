"""Inputs that are vectors, with a column for each number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.bulk.columns import list_names
from app.bulk.errors import UsageError
from app.codecs.values import misshapen
from models.manifest import Manifest


def vectors_of(manifest: Manifest, texts: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """The columns for inputs, from options such as `x=age,income`.

    Raises:
        UsageError: if an input is not a vector of as many numbers.
    """
    vectors: dict[str, tuple[str, ...]] = {}
    specs = {spec.name: spec for spec in manifest.inputs}
    for text in texts:
        name, _, rest = text.partition("=")
        columns = tuple(column.strip() for column in rest.split(","))
        if not all(columns) or name in vectors:
            raise UsageError(
                f"--columns {text!r}: must be the name of an input, =, and its columns, separated "
                "by commas; once for each input"
            )
        spec = specs.get(name)
        if spec is None or manifest.codec.kind != "tensor":
            there = list_names([*specs]) if manifest.codec.kind == "tensor" else "not numbers"
            raise UsageError(f"--columns {text!r}: the inputs are {there}")
        if not spec.takes((len(columns),)):
            raise UsageError(f"--columns {text!r}: {misshapen(spec, (len(columns),))}")
        vectors[name] = columns
    return vectors
