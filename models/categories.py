"""Inputs that are categories: clients send their names, and the model gets their indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from models.parts import Part
from models.tensors import Name, TensorSpec

MAX_CATEGORIES = 100_000  # of a model: all are in its manifest, and clients get them


class Categories(Part):
    """The categories of an input; the index of each is its place in `names`.

    Attributes:
        unknown: the index of every other name, of null, and of an absent key if the input is one
            number; None: an item with those is rejected.
    """

    input: Name
    names: tuple[str, ...] = Field(min_length=1, max_length=MAX_CATEGORIES)
    unknown: int | None = None

    @model_validator(mode="after")
    def _differ(self) -> Self:
        earlier = set[str]()
        for name in self.names:
            if name in earlier:
                raise ValueError(f"the categories of {self.input!r} have {name!r} twice")
            earlier.add(name)
        return self

    @property
    def largest(self) -> int:
        """The largest index."""
        return max(len(self.names) - 1, self.unknown or 0)


def check_categories(categories: Sequence[Categories], inputs: Sequence[TensorSpec]) -> None:
    """Check that each index is a number that the input takes.

    Raises:
        ValueError: with the contradiction.
    """
    specs = {spec.name: spec for spec in inputs}
    names = [each.input for each in categories]
    if len(set(names)) < len(names):
        raise ValueError(f"an input has categories twice: {', '.join(names)}")
    if sum(len(each.names) for each in categories) > MAX_CATEGORIES:
        raise ValueError(f"a model may have {MAX_CATEGORIES:,} categories in total")
    for each in categories:
        spec = specs.get(each.input)
        if spec is None:
            raise ValueError(f"categories of {each.input!r}: the inputs are {', '.join(specs)}")
        if np.dtype(spec.dtype).kind not in "iu" or spec.below is not None:
            raise ValueError(f"categories become integers, but the input is {spec}")
        whole = np.iinfo(spec.dtype)
        least = int(whole.min) if spec.minimum is None else spec.minimum
        most = int(whole.max) if spec.maximum is None else spec.maximum
        for index in (0, len(each.names) - 1, each.unknown):
            if index is not None and not least <= index <= most:
                raise ValueError(f"{index} is the index of a category, but the input is {spec}")


def optional_inputs(
    inputs: Sequence[TensorSpec], categories: Sequence[Categories]
) -> frozenset[str]:
    """Return the inputs that an item may lack: single numbers that may be missing or unknown."""
    takes_unknown = {each.input for each in categories if each.unknown is not None}
    scalars = [spec for spec in inputs if not spec.item_shape]
    return frozenset(spec.name for spec in scalars if spec.nan or spec.name in takes_unknown)


def by_input(categories: Sequence[Categories]) -> Mapping[str, Categories]:
    """Return the categories by input."""
    return {each.input: each for each in categories}
