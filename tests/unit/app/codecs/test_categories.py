"""Names of categories become indices; unknown ones have an index of their own, or are rejected."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from app.codecs.tensor import TensorCodec
from app.errors import InvalidInput
from models.categories import Categories
from models.codec_specs import TensorCodecSpec
from models.tensors import TensorSpec
from tests.unit.models.manifests import make_manifest, spec

NAMES = ("Oslo", "Roma", "75001")


def codec(
    *inputs: TensorSpec, unknown: int | None = None, names: tuple[str, ...] = NAMES
) -> TensorCodec:
    ranged = [each.model_copy(update={"minimum": 0, "maximum": 200}) for each in inputs[:1]]
    categories = Categories(input=inputs[0].name, names=names, unknown=unknown)
    manifest = make_manifest(
        [*ranged, *inputs[1:]], codec=TensorCodecSpec(categories=(categories,))
    )
    return TensorCodec(manifest)


CITY = spec("city", "int64", (-1,))
STRICT, OPEN = (codec(CITY, spec("x", shape=(-1,)), unknown=each) for each in (None, 3))
TAGS = codec(spec("tags", "int64", (-1, 2, 2)), unknown=3)


@pytest.mark.parametrize(("value", "index"), [("Oslo", 0), ("75001", 2), (1, 1)])
def test_a_name_or_its_index(value: object, index: int) -> None:
    for each in (STRICT, OPEN):
        item = each.decode({"city": value, "x": 0.5})
        assert item.arrays["city"].tolist() == index
        assert item.arrays["city"].dtype == np.int64
    assert codec(CITY).decode(value).arrays["city"].tolist() == index
    assert codec(CITY).decode({"city": value}).arrays["city"].tolist() == index


@pytest.mark.parametrize("value", [{"city": "oslo"}, {"city": None}, {}, {"city": ""}])
def test_unknown_names_and_missing_ones(value: dict[str, Any]) -> None:
    assert OPEN.decode({**value, "x": 1}).arrays["city"].tolist() == 3
    with pytest.raises(InvalidInput):
        STRICT.decode({**value, "x": 1})


def test_names_in_lists() -> None:
    value = [["Oslo", None], [2, "Rome"]]
    assert TAGS.decode(value).arrays["tags"].tolist() == [[0, 3], [2, 3]]
    assert TAGS.decode(["Oslo", None, 2, "Rome"]).arrays["tags"].tolist() == [[0, 3], [2, 3]]
    for wrong in ([[["Oslo"]]], ["Oslo"], [["Oslo", "Roma"], ["Oslo"]], "Oslo"):
        with pytest.raises(InvalidInput, match=r"expected int64 of shape \[2, 2\]"):
            TAGS.decode(wrong)


def test_errors_name_the_categories() -> None:
    told = "'city': unknown category 'Rom'; there are 'Oslo', 'Roma', '75001'"
    with pytest.raises(InvalidInput) as caught:
        STRICT.decode({"city": "Rom", "x": 1})
    assert str(caught.value) == told
    assert caught.value.details == ({"input": "city", "got": "Rom"},)
    many = codec(CITY, names=tuple(f"c{n}" for n in range(150)))
    with pytest.raises(InvalidInput, match=r"unknown category 'x{60}\.\.\.'; there are 150$"):
        many.decode("x" * 9999)
    with pytest.raises(InvalidInput, match="not all numbers"):
        STRICT.decode({"city": True, "x": 1})


@pytest.mark.parametrize("unknown", [None, 3])
@pytest.mark.parametrize(
    "value",
    [
        "Oslo",
        "x",
        1,
        201,
        None,
        True,
        ["Oslo"],
        {"city": "Roma"},
        {"city": "x"},
        {"city": None},
        {},
    ],
)
def test_schema_agrees_with_the_codec(unknown: int | None, value: Any) -> None:
    each = codec(CITY, unknown=unknown)
    try:
        each.decode(value)
        taken = True
    except InvalidInput:
        taken = False
    assert jsonschema_rs.is_valid(dict(each.item_schema()), value) == taken


@pytest.mark.parametrize(("value", "got"), [("a", "a string"), (None, "null")])
@pytest.mark.parametrize("unknown", [None, 3])
def test_a_name_is_no_list(unknown: int | None, value: object, got: str) -> None:
    with pytest.raises(InvalidInput, match=rf"expected int64 of shape \[3\], got {got}"):
        codec(spec("tags", "int64", (-1, 3)), unknown=unknown).decode(value)


def test_a_long_list_is_not_in_the_schema() -> None:
    many = codec(CITY, names=tuple(f"c{n}" for n in range(150)))
    assert "c149" not in str(many.item_schema())
    assert "75001" in str(codec(CITY).item_schema())
