"""The report says how pictures are prepared, and shows the example as the model sees it."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from export.reports.content import content_of
from export.reports.pictures import MAX_SHOWN, example_seen, steps_of
from export.reports.report_html import render
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.manifest import Manifest
from tests.unit.models.manifests import make_manifest, spec
from tests.unit.models.pictures import encoded, noise


def how(**changes: Any) -> PicturePreprocess:
    fields = {"width": 9, "height": 7, "channels": 3, "mean": (0.5, 0.25, 0), "std": (1, 2, 0.3)}
    return PicturePreprocess.model_validate(fields | changes)


def manifest(how: PicturePreprocess, example: object) -> Manifest:
    shape = (-1, how.channels, how.height, how.width)
    content = make_manifest([spec("x", shape=shape)], codec=ImageCodecSpec(preprocess=how))
    return content.model_copy(update={"example": example})


def base64_of(picture: Image.Image) -> str:
    return base64.b64encode(encoded(picture)).decode()


NORMALISED = "(value / 255 - mean) / std with mean 0.5, 0.25, 0 and std 1, 2, 0.3"
SQUARE = {"fit": "stretch", "height": 9}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            (
                "RGB, 9 x 7; put on white; scaled to fit inside (bilinear), the rest filled with "
                f"the median of the outermost pixels; {NORMALISED}"
            ),
        ),
        (
            {"channels": 1, "mean": (0.1,), "std": (0.3,), "polarity": "auto", "fill": 114},
            (
                "grey, 9 x 7; put on white; inverted if the border is light; scaled to fit inside "
                "(bilinear), the rest filled with level 114; (value / 255 - mean) / std with mean "
                "0.1 and std 0.3"
            ),
        ),
        ({"fill": "mean", "alpha": "drop"}, "transparency dropped; scaled to fit inside (bilinear"),
        (
            {"fit": "crop", "resize_shorter": 12, "interpolation": "bicubic"},
            f"shorter side scaled to 12 (bicubic), middle cut out; {NORMALISED}",
        ),
        ({**SQUARE, "polarity": "dark-on-light"}, "put on white; inverted; stretched (bilinear); "),
        ({**SQUARE, "resize_shorter": 12}, "stretched to 12 x 12 (bilinear), middle cut out; "),
    ],
)
def test_preprocessing_in_words(changes: dict[str, Any], words: str) -> None:
    assert words in steps_of(how(**changes))


def test_the_steps_are_a_fact_of_picture_models_only() -> None:
    facts = dict(content_of(manifest(how(), "")).facts)
    assert facts["pictures"] == steps_of(how())
    assert "pictures" not in dict(content_of(make_manifest()).facts)


def test_the_page_shows_the_example_as_the_model_sees_it() -> None:
    picture = Image.fromarray(noise(20, 30))
    preprocess = how(fit="stretch", interpolation="bicubic")
    page = render(manifest(preprocess, base64_of(picture)))
    display = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(display) == 1
    expected = picture.resize((9, 7), Image.Resampling.BICUBIC)
    with Image.open(io.BytesIO(base64.b64decode(display[0]))) as seen:
        np.testing.assert_array_equal(np.asarray(seen), np.asarray(expected))


def test_large_pictures_are_shown_smaller() -> None:
    side = 2 * MAX_SHOWN
    grey = {"channels": 1, "mean": (0.0,), "std": (1.0,)}
    preprocess = how(width=side, height=side // 2, **grey)
    seen = example_seen(manifest(preprocess, base64_of(Image.new("L", (3, 3), 7))))
    assert seen is not None
    with Image.open(io.BytesIO(base64.b64decode(seen))) as display:
        assert (display.mode, display.size) == ("L", (MAX_SHOWN, MAX_SHOWN // 2))


@pytest.mark.parametrize("example", [None, [1, 2], "no picture", base64.b64encode(b"no").decode()])
def test_other_examples_are_not_shown(example: object) -> None:
    assert example_seen(manifest(how(), example)) is None
    assert "<img" not in render(manifest(how(), example))
