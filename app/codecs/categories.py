"""Categories of an input: from the names in JSON to indices."""

from __future__ import annotations

from collections.abc import Sequence

from app.codecs.item_schema import JsonSchema
from app.codecs.values import short
from app.errors import InvalidInput
from models.categories import Categories
from models.tensors import TensorSpec

MAX_LISTED = 20  # names in an error
MAX_LISTED_CHARACTERS = 200  # of all of them: each invalid item of a request has its own error
MAX_ENUM = 100  # names in a schema
MAX_SHOWN = 60  # characters of an unknown name in details


class CategoryIndex:
    """The indices of an input's categories.

    Args:
        spec: the input.
        categories: its categories.
    """

    def __init__(self, spec: TensorSpec, categories: Categories) -> None:
        self._name = spec.name
        self._axes = max(1, len(spec.item_shape))  # a flat list is an item of any shape
        self._is_scalar = not spec.item_shape
        self._unknown = categories.unknown
        self._names = categories.names
        self._told = _told(categories.names)
        self._indices = {name: index for index, name in enumerate(categories.names)}

    def indices(self, value: object, axes: int = 0) -> object:
        """A JSON value with an index for each name; numbers are indices already.

        Args:
            value: of the input, or of a list in it.
            axes: how many lists are around it.

        Raises:
            InvalidInput: if a name is unknown, and unknown names have no index.
        """
        if not (axes or self._is_scalar or isinstance(value, list)):
            return value  # the error is about its shape
        if isinstance(value, str):
            index = self._indices.get(value, self._unknown)
            if index is None:
                raise InvalidInput(
                    f"{self._name!r}: unknown category {short(value)}; {self._told}",
                    [{"input": self._name, "got": value[:MAX_SHOWN]}],
                )
            return index
        if value is None and self._unknown is not None:
            return self._unknown
        if isinstance(value, list) and axes < self._axes:
            return [self.indices(each, axes + 1) for each in value]
        return value

    def schema(self, number: JsonSchema) -> JsonSchema:
        """The schema of one value, given that of an index."""
        if self._unknown is not None:
            return {"anyOf": [{"type": ["string", "null"]}, number]}
        name: dict[str, object] = {"type": "string"}
        if len(self._names) <= MAX_ENUM:
            name["enum"] = list(self._names)
        return {"anyOf": [name, number]}


def _told(names: Sequence[str]) -> str:
    listed = ", ".join(map(short, names[:MAX_LISTED]))
    is_short = len(names) <= MAX_LISTED and len(listed) <= MAX_LISTED_CHARACTERS
    return f"there are {listed if is_short else f'{len(names):,}'}"
