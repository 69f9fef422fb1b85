"""Where a picture's pixels are in the model's input, and which declarations fit a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.inputs.pictures import ORIENTATION
from models.inputs.preprocess import geometry_of, open_picture, preprocess
from models.places import Boxes, Geometry
from tests.unit.models.manifests import make_manifest, spec
from tests.unit.models.pictures import encoded, exif_data, jpeg

FITS: list[dict[str, Any]] = [
    {},
    {"fit": "stretch"},
    {"fit": "stretch", "resize_shorter": 56},
    {"fit": "crop", "resize_shorter": 60},
]
HALF_PIXEL = 0.6  # of the input


def how(side: Any = 48, **changes: Any) -> PicturePreprocess:
    fields = {"width": side, "height": side, "channels": 1, "mean": (0.0,), "std": (1.0,)}
    return PicturePreprocess.model_validate(fields | {"fill": 0} | changes)


def spot(width: int, height: int, x: int, y: int, side: int) -> Image.Image:
    """A black picture with a light square around (x, y)."""
    pixels = np.zeros((height, width), np.uint8)
    pixels[y - side // 2 : y + side // 2, x - side // 2 : x + side // 2] = 255
    return Image.fromarray(pixels)


def centre(array: np.ndarray[Any, np.dtype[np.float32]]) -> tuple[float, float]:
    """The centre of the light in an input [1, height, width]."""
    rows, columns = np.indices(array.shape[1:]) + 0.5
    weight = array[0] / array.sum()
    return float((columns * weight).sum()), float((rows * weight).sum())


def mapped(image: Geometry, x: float, y: float) -> tuple[float, float]:
    return (x * image.scale[0] + image.offset[0], y * image.scale[1] + image.offset[1])


@pytest.mark.parametrize("fit", FITS, ids=str)
@pytest.mark.parametrize("size", [(200, 120), (120, 200), (48, 48), (31, 40)])
def test_a_spot_is_where_the_geometry_says(size: tuple[int, int], fit: dict[str, Any]) -> None:
    wanted = how(**{"fill": "border" if fit else 0, **fit})
    x, y = size[0] * 9 // 20, size[1] * 11 // 20
    opened = open_picture(encoded(spot(*size, x, y, 8)), wanted)
    image = geometry_of(opened, wanted)
    assert (image.width, image.height) == size
    assert centre(preprocess(opened, wanted)) == pytest.approx(mapped(image, x, y), abs=HALF_PIXEL)


@pytest.mark.parametrize("orientation", range(1, 10))  # 9 is none
def test_the_geometry_is_of_the_upright_picture(orientation: int) -> None:
    wanted = how()
    file = spot(200, 120, 60, 90, 12)
    data = jpeg(file, exif=exif_data("<", (ORIENTATION, 3, orientation)), quality=95)
    opened = open_picture(data, wanted)
    image = geometry_of(opened, wanted)
    assert (image.width, image.height) == ((120, 200) if 5 <= orientation <= 8 else (200, 120))
    upright = open_picture(data, how(200))
    there = centre(preprocess(upright, how(200)))
    whole = geometry_of(upright, how(200))
    x, y = ((at - off) / by for at, off, by in zip(there, whole.offset, whole.scale, strict=True))
    assert centre(preprocess(opened, wanted)) == pytest.approx(mapped(image, x, y), abs=HALF_PIXEL)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpeg_file_decoded_at_an_eighth_is_measured_in_its_own_pixels(orientation: int) -> None:
    """1001 pixels become 126, which are 1008: the seven beyond the edge may be on either side."""
    wanted = how(32)
    data = jpeg(
        spot(1001, 601, 973, 573, 48),
        exif=exif_data("<", (ORIENTATION, 3, orientation)),
        quality=95,
    )
    opened = open_picture(data, wanted)
    assert opened.reduction == 8
    image = geometry_of(opened, wanted)
    x: float
    y: float
    x, y = {
        1: (973, 573),
        2: (28, 573),
        3: (28, 28),
        4: (973, 28),
        5: (573, 973),
        6: (28, 973),
        7: (28, 28),
        8: (573, 28),
    }[orientation]
    made = centre(preprocess(opened, wanted))
    assert made == pytest.approx(mapped(image, x, y), abs=0.1)  # 3 pixels of the file


def manifest(codec: dict[str, Any], *outputs: Any) -> ImageCodecSpec:
    made = ImageCodecSpec.model_validate({"preprocess": how().model_dump(), **codec})
    inputs = [spec("x", shape=(-1, 1, 48, 48))]
    return make_manifest(inputs, outputs, codec=made).codec  # type: ignore[return-value]


OUTPUTS = (
    spec("boxes", shape=(-1, 5, 4)),
    spec("raw", shape=(-1, 84, 100)),
    spec("mask", "uint8", shape=(-1, 3, 12, 12)),
    spec("whole", "int64", shape=(-1, 5, 4)),
    spec("flat", shape=(-1, 3)),
)


def test_boxes_and_masks_are_part_of_the_manifest() -> None:
    boxes = (Boxes(output="boxes", form="xyxy"), Boxes(output="raw", form="cxcywh", columns=True))
    codec = manifest({"boxes": boxes, "masks": ["mask"]}, *OUTPUTS)
    assert (codec.boxes, codec.masks) == (boxes, ("mask",))


def test_older_servers_read_manifests_without_places() -> None:
    assert manifest({}, *OUTPUTS).model_dump().keys().isdisjoint({"boxes", "masks"})


@pytest.mark.parametrize(
    ("codec", "problem"),
    [
        ({"masks": ["none"]}, "'none' is not an output; the model has boxes, raw, mask"),
        ({"masks": ["flat"]}, "'flat' needs axes for height and width at its end"),
        ({"masks": ["mask", "mask"]}, "'mask' is declared twice"),
        ({"boxes": [{"output": "whole", "form": "xyxy"}]}, "int64; pixels of large pictures need"),
        ({"boxes": [{"output": "flat", "form": "xywh"}]}, "each row begins with the 4 numbers"),
        ({"boxes": [{"output": "flat", "form": "xy", "columns": True}]}, "each column begins with"),
        (
            {"boxes": [{"output": "boxes", "form": "xy"}], "masks": ["boxes"]},
            "'boxes' is declared twice",
        ),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(codec: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        manifest(codec, *OUTPUTS)
