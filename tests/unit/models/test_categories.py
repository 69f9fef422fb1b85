"""Categories fit their input, or the manifest is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from models.categories import MAX_CATEGORIES, Categories, optional_inputs
from models.codec_specs import TensorCodecSpec
from models.manifest import Manifest
from models.tensors import TensorSpec
from tests.unit.models.manifests import make_manifest, spec

CITY = spec("city", "int64", (-1,))


def made(
    names: tuple[str, ...] = ("a", "b"),
    unknown: int | None = None,
    inputs: tuple[TensorSpec, ...] = (CITY,),
    **changes: Any,
) -> Manifest:
    fields = {"input": "city", "names": names, "unknown": unknown, **changes}
    codec = TensorCodecSpec(categories=(Categories(**fields),))
    return make_manifest(inputs, codec=codec)


def in_range(most: int) -> tuple[TensorSpec, ...]:
    return (CITY.model_copy(update={"minimum": 0, "maximum": most}),)


def test_they_are_in_the_manifest_only_if_there_are_some() -> None:
    assert made().public()["codec"]["categories"] == [  # type: ignore[index,call-overload]
        {"input": "city", "names": ["a", "b"], "unknown": None}
    ]
    assert "categories" not in str(make_manifest().public())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ("a", "b", "a")}, "the categories of 'city' have 'a' twice"),
        ({"names": ()}, "at least 1"),
        ({"names": tuple(map(str, range(MAX_CATEGORIES + 1)))}, "at most"),
        ({"input": "town"}, "categories of 'town': the inputs are city"),
        ({"inputs": (spec("city"),)}, r"become integers, but the input is city=float32\[-1,1\]"),
        ({"inputs": in_range(0)}, r"1 is the index of a category, but the input is .* in 0\.\.0"),
        ({"inputs": in_range(1), "unknown": 2}, "2 is the index of a category"),
        ({"unknown": -1, "inputs": in_range(1)}, "-1 is the index of a category"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        made(**changes)


def test_scalars_that_may_be_unknown_are_optional() -> None:
    inputs = (CITY, spec("tags", "int64", (-1, 3)), spec("age", shape=(-1,)))
    known = [Categories(input=name, names=("a",), unknown=1) for name in ("city", "tags")]
    assert optional_inputs(inputs, known) == {"city"}
    assert (
        optional_inputs(inputs, [each.model_copy(update={"unknown": None}) for each in known])
        == set()
    )
