"""Boxes and masks in the caller's picture, against mappings of single points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.codecs import places as places_module
from app.codecs.places import Places, at_once
from app.codecs.png import PngWriter
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.pictured import MaskOutput
from models.places import Geometry
from models.tensors import Array, TensorSpec
from tests.unit.models.manifests import make_manifest, spec

PADDED = Geometry(200, 100, (0.5, 0.5), (0.0, 25.0))  # 100 x 50 in the middle of 100 x 100
CROPPED = Geometry(300, 200, (0.5, 0.5), (-25.0, 0.0))
STRETCHED = Geometry(50, 400, (2.0, 0.25), (0.0, 0.0))


def places(*outputs: TensorSpec, **codec: Any) -> Places:
    how = PicturePreprocess(width=100, height=100, channels=1, mean=(0.0,), std=(1.0,))
    made = ImageCodecSpec.model_validate({"preprocess": how, **codec})
    return Places(make_manifest([spec("x", shape=(-1, 1, 100, 100))], outputs, codec=made))


def boxes(form: str, values: list[Any], image: Geometry, **more: Any) -> Array:
    array = np.array(values, np.float32)
    declared = {"output": "boxes", "form": form, **more}
    made = places(spec("boxes", shape=(-1, *array.shape)), boxes=[declared])
    given = {"boxes": array}
    found = made.mapped(given, image)["boxes"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(given["boxes"], np.array(values, np.float32))  # others read it
    return found


@pytest.mark.parametrize(
    ("image", "wanted"),
    [(PADDED, [20, 10, 120, 70]), (CROPPED, [70, 60, 170, 120]), (STRETCHED, [5, 120, 30, 240])],
)
def test_every_form_is_the_same_box(image: Geometry, wanted: list[int]) -> None:
    left, top, right, bottom = wanted
    width, height = right - left, bottom - top
    assert boxes("xyxy", [[10, 30, 60, 60]], image).tolist() == [wanted]
    assert boxes("xywh", [[10, 30, 50, 30]], image).tolist() == [[left, top, width, height]]
    centre = [left + width / 2, top + height / 2]
    assert boxes("cxcywh", [[35, 45, 50, 30]], image).tolist() == [[*centre, width, height]]
    assert boxes("xy", [[10, 30, 9]], image).tolist() == [[left, top, 9]]


def test_relative_numbers_become_pixels() -> None:
    found = boxes("cxcywh", [[0.35, 0.45, 0.5, 0.3]], PADDED, relative=True)
    np.testing.assert_allclose(found, [[70, 40, 100, 60]], rtol=1e-6)


def test_boxes_end_at_the_edge_of_the_picture() -> None:
    assert boxes("xyxy", [[-10, 0, 110, 90]], PADDED).tolist() == [[0, 0, 200, 100]]
    assert boxes("cxcywh", [[50, 50, 120, 90]], PADDED).tolist() == [[100, 50, 200, 100]]


def test_other_numbers_of_a_row_or_column_stay() -> None:
    assert boxes("xyxy", [[10, 30, 60, 60, 0.9, 7]], PADDED)[0, 4:].tolist() == pytest.approx(
        [0.9, 7]
    )
    columns = [[10.0, 0], [30, 25], [60, 50], [60, 50], [0.1, 0.2]]
    found = boxes("xyxy", columns, PADDED, columns=True)
    assert found[:4].T.tolist() == [[20, 10, 120, 70], [0, 0, 100, 50]]
    assert found[4].tolist() == pytest.approx([0.1, 0.2])


def test_filler_after_the_counted_rows_stays() -> None:
    outputs = (
        TensorSpec(name="boxes", dtype="float32", shape=(-1, 3, 4), count="found"),
        TensorSpec(name="masks", dtype="float32", shape=(-1, 3, 100, 100), count="found"),
        spec("found", "int64", (-1,)),
    )
    made = places(*outputs, boxes=[{"output": "boxes", "form": "xyxy"}], masks=["masks"])
    given = {
        "boxes": np.full((3, 4), 50, np.float32),
        "masks": np.ones((3, 100, 100), np.float32),
        "found": np.asarray(1),
    }
    found = made.mapped(given, CROPPED)
    assert found["boxes"].tolist() == [[150, 100, 150, 100], [50] * 4, [50] * 4]
    assert [float(each.max()) for each in found["masks"]] == [1, 0, 0]


@pytest.mark.parametrize("image", [PADDED, CROPPED, STRETCHED])
@pytest.mark.parametrize("side", [100, 25])
def test_a_mask_of_numbers_has_the_nearest_one(image: Geometry, side: int) -> None:
    mask = np.random.default_rng(1).integers(0, 9, (2, side, side)).astype(np.uint8)
    made = places(spec("mask", "uint8", (-1, 2, side, side)), masks=["mask"])
    found = made.mapped({"mask": mask}, image)["mask"]
    assert found.shape == (2, image.height, image.width)
    assert found.dtype == np.uint8
    assert made.nbytes({"mask": mask}, image) == found.nbytes
    for y in range(image.height):
        for x in range(image.width):
            across = (x + 0.5) * image.scale[0] + image.offset[0]
            down = (y + 0.5) * image.scale[1] + image.offset[1]
            is_seen = 0 <= across < 100 and 0 <= down < 100
            at = int(down * side / 100), int(across * side / 100)
            assert found[0, y, x] == (mask[0][at] if is_seen else 0)


@pytest.mark.parametrize(
    "image", [PADDED, CROPPED, STRETCHED, Geometry(4, 4, (0.1, 0.1), (-50, 0))]
)
@pytest.mark.parametrize("step_numbers", [1, 1 << 15])
def test_scores_that_are_drawn_become_their_classes(
    image: Geometry, step_numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of the scores in the picture, which are never made."""
    monkeypatch.setattr(places_module, "STEP_NUMBERS", step_numbers)
    scores = np.random.default_rng(1).integers(0, 5, (5, 25, 25)).astype(np.float32)  # with ties
    output = TensorSpec(
        name="mask", dtype="float32", shape=(-1, 5, 25, 25), picture=MaskOutput(kind="mask")
    )
    made = places(output, masks=["mask"])
    whole = made.mapped({"mask": scores}, image)["mask"]
    found = at_once(made.steps({"mask": scores}, image, drawn=True))["mask"]
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, whole.argmax(0))
    assert made.nbytes({"mask": scores}, image, drawn=True) == found.nbytes
    assert PngWriter(output).write(found) == PngWriter(output).write(whole)
