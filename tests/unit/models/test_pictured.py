"""Declarations of outputs that are pictures."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from models.pictured import ChannelLayout, ImageOutput, MaskOutput, colours, layout
from models.tensors import TensorSpec
from tests.unit.models.manifests import make_manifest, spec

IMAGE, MASK = ImageOutput(), MaskOutput()
WIDE = ImageOutput(range=(-1, 1))


@pytest.mark.parametrize(
    ("form", "dtype", "shape", "found"),
    [
        (IMAGE, "float32", (4, 5), ChannelLayout(None, 1)),
        (IMAGE, "float32", (1, -1, -1), ChannelLayout(0, 1)),
        (IMAGE, "uint8", (3, 4, 5), ChannelLayout(0, 3)),
        (IMAGE, "uint8", (4, 5, 3), ChannelLayout(2, 3)),
        (IMAGE, "float16", (3, 5, 3), ChannelLayout(0, 3)),
        (WIDE, "int64", (-1, -1, 1), ChannelLayout(2, 1)),
        (MASK, "int64", (4, 5), ChannelLayout(None, 1)),
        (MASK, "bool", (1, 4, 5), ChannelLayout(0, 1)),
        (MASK, "float32", (21, -1, -1), ChannelLayout(0, 21)),
    ],
)
def test_layout(form: Any, dtype: str, shape: tuple[int, ...], found: ChannelLayout) -> None:
    assert layout(form, dtype, shape) == found


@pytest.mark.parametrize(
    ("form", "dtype", "shape", "message"),
    [
        (IMAGE, "float32", (4,), r"\[height, width\], .* got \[4\]"),
        (IMAGE, "float32", (2, 4, 5), "with C of 1 or 3"),
        (IMAGE, "float32", (-1, 4, 5), "with C of 1 or 3"),
        (IMAGE, "int64", (4, 5), "an image of int64 needs a range"),
        (WIDE, "bool", (4, 5), "booleans are a mask"),
        (MASK, "float32", (4, 5), "needs a score for each class"),
        (MASK, "float32", (1, 4, 5), "one channel is an image"),
        (MASK, "float32", (257, 4, 5), "2 to 256 classes"),
        (MASK, "int64", (2, 4, 5), r"\[height, width\] or \[1, height, width\]"),
        (MaskOutput(palette=("#000000",)), "float32", (2, 4, 5), "palette has 1 entries for 2"),
        (MaskOutput(classes=("a",)), "float32", (2, 4, 5), "the classes has 1 entries for 2"),
    ],
)
def test_what_is_no_picture(form: Any, dtype: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layout(form, dtype, shape)
    with pytest.raises(ValidationError, match=message):
        TensorSpec(name="x", dtype=dtype, shape=(-1, *shape), picture=form)


@pytest.mark.parametrize("fields", [{"range": (1, 1)}, {"range": (2, -2)}])
def test_an_empty_range_is_refused(fields: Any) -> None:
    with pytest.raises(ValidationError, match="is empty"):
        ImageOutput(**fields)


def test_neither_inputs_nor_counted_rows_are_pictures() -> None:
    shown = TensorSpec(name="x", dtype="float32", shape=(-1, 4, 5), picture=IMAGE)
    with pytest.raises(ValidationError, match="input 'x' is declared as a picture"):
        make_manifest(inputs=[shown])
    with pytest.raises(ValidationError, match="counted rows are no picture"):
        TensorSpec(name="x", dtype="float32", shape=(-1, 4, 5), picture=IMAGE, count="n")


def test_the_manifest_keeps_the_declaration() -> None:
    form = MaskOutput(palette=("#000000", "#ff8000"), classes=("nothing", "road"))
    shown = TensorSpec(name="m", dtype="int64", shape=(-1, 4, 5), picture=form)
    made = make_manifest(outputs=[shown])
    again = type(made).model_validate_json(made.model_dump_json())
    assert again.outputs[0].picture == form
    assert spec().picture is None


def test_colours_are_those_of_pascal_voc_unless_they_are_given() -> None:
    default = colours(MASK)
    assert len(default) == 768
    # aeroplane, bicycle, bird, cat, and the border of all objects
    found = [tuple(default[3 * at : 3 * at + 3]) for at in (0, 1, 2, 3, 8, 255)]
    assert found == [
        *((0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (64, 0, 0), (224, 224, 192)),
    ]
    given = colours(MaskOutput(palette=("#010203",)))
    assert (given[:3], given[3:]) == (b"\1\2\3", default[3:])
