"""Pictures fit the manifest, and their variants are all different and hardly so."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loadtests.traffic.pictures import draw_picture, picture_variants, png, vary_picture
from models.codec_specs import PicturePreprocess


def how(**changes: Any) -> PicturePreprocess:
    return PicturePreprocess(
        **{"width": 9, "height": 7, "channels": 1, "mean": (0.5,), "std": (0.5,)} | changes
    )


COLOUR = {"channels": 3, "mean": (0.5,) * 3, "std": (0.5,) * 3}


@pytest.mark.parametrize(
    ("changes", "size", "mode"),
    [
        ({}, (9, 7), "L"),
        (COLOUR, (9, 7), "RGB"),
        ({"fit": "crop", "resize_shorter": 12}, (12, 12), "L"),
    ],
)
def test_picture_has_the_unscaled_size(
    changes: dict[str, Any], size: tuple[int, int], mode: str
) -> None:
    pixels = draw_picture(how(**changes), np.random.default_rng(1))
    with Image.open(io.BytesIO(png(pixels))) as picture:
        assert (picture.format, picture.size, picture.mode) == ("PNG", size, mode)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert not border.any()
    assert len(np.unique(pixels)) > 10


def test_picture_variants_differ_by_one_grey_level() -> None:
    pixels = draw_picture(how(), np.random.default_rng(1))
    assert picture_variants(pixels) == 7**8
    varied = [vary_picture(pixels, number) for number in range(500)]
    assert len({each.tobytes() for each in varied}) == 500
    for each in varied:
        off = np.abs(each.astype(int) - pixels.astype(int))
        assert off.max() == 1
        assert off.sum() == 8
