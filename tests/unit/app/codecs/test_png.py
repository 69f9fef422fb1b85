"""Outputs as PNG files, read again by Pillow."""

from __future__ import annotations

import base64
import io
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from app.codecs.answers import AnswerEncoder
from app.codecs.base import JSON, NPY, NPZ, OCTET_STREAM, PNG
from app.codecs.png import PngWriter
from app.errors import InvalidInput, NotAcceptable
from app.types import Array
from models.pictured import ImageOutput, MaskOutput
from models.tensors import TensorSpec
from tests.unit.models.manifests import make_manifest, spec

STEPS = np.linspace(0, 1, 12, dtype=np.float32).reshape(2, 6)
LEVELS = np.rint(STEPS * 255).astype(np.uint8)
COLOURS = np.arange(36, dtype=np.uint8).reshape(3, 2, 6)  # channels first


def output(array: Array, form: ImageOutput | MaskOutput) -> TensorSpec:
    dtype: Any = array.dtype.name
    return TensorSpec(name="y", dtype=dtype, shape=(-1, *array.shape), picture=form)


def read(array: Array, form: ImageOutput | MaskOutput) -> Image.Image:
    return Image.open(io.BytesIO(PngWriter(output(array, form)).write(array)))


@pytest.mark.parametrize(
    ("array", "form", "pixels"),
    [
        (STEPS, ImageOutput(), LEVELS),
        (STEPS[np.newaxis], ImageOutput(), LEVELS),
        (STEPS[..., np.newaxis], ImageOutput(), LEVELS),
        (STEPS * 2 - 1, ImageOutput(range=(-1, 1)), LEVELS),
        (STEPS.astype(np.float64) * 1e9, ImageOutput(range=(0, 1e9)), LEVELS),
        ((STEPS * 3 - 1).astype(np.float16), ImageOutput(), None),
        (LEVELS.T, ImageOutput(), LEVELS.T),
        (LEVELS.astype(np.int64) * 257, ImageOutput(range=(0, 65535)), LEVELS),
        (COLOURS, ImageOutput(), np.moveaxis(COLOURS, 0, 2)),
        (np.moveaxis(COLOURS, 0, 2), ImageOutput(), np.moveaxis(COLOURS, 0, 2)),
    ],
)
def test_images(array: Array, form: ImageOutput, pixels: Array | None) -> None:
    picture = read(array, form)
    if pixels is None:  # numbers outside the range are cut off
        assert np.asarray(picture)[0, 0] == 0
        assert np.asarray(picture)[-1, -1] == 255
    else:
        assert picture.mode == ("L" if pixels.ndim == 2 else "RGB")
        np.testing.assert_array_equal(np.asarray(picture), pixels)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int8", "bool"])
def test_masks_of_classes(dtype: str) -> None:
    classes = np.array([[0, 1, 1], [1, 0, 0]]).astype(dtype)
    form = MaskOutput(palette=("#0a0b0c", "#ffffff"))
    for array in (classes, classes[np.newaxis]):
        picture = read(array, form)
        assert picture.mode == "P"
        np.testing.assert_array_equal(np.asarray(picture), classes)
        assert np.asarray(picture.convert("RGB"))[0, :2].tolist() == [[10, 11, 12], [255, 255, 255]]


def test_masks_of_scores() -> None:
    scores = np.random.default_rng(0).normal(size=(5, 6, 7)).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(read(scores, MaskOutput())), scores.argmax(axis=0))


class TestAnswers:
    MASK = output(np.zeros((1, 2), np.int64), MaskOutput())
    BOTH = AnswerEncoder(make_manifest(outputs=[spec("z"), MASK]))
    VALUES: ClassVar[dict[str, Array]] = {"z": np.array([0.5], np.float32), "y": np.array([[3, 4]])}

    def test_media_types(self) -> None:
        one = AnswerEncoder(make_manifest(outputs=[self.MASK]))
        second = self.MASK.model_copy(update={"name": "second"})
        two = AnswerEncoder(make_manifest(outputs=[self.MASK, second]))
        assert one.item_types == (JSON, OCTET_STREAM, NPY, NPZ, PNG)
        assert one.batch_types == (JSON, OCTET_STREAM, NPY, NPZ)
        assert self.BOTH.item_types == (JSON, NPZ, PNG)
        assert (self.BOTH.batch_types, two.item_types) == ((JSON, NPZ), (JSON, NPZ))

    def test_base64_only_on_request(self) -> None:
        numbers = self.BOTH.encode(self.VALUES)["outputs"]
        assert isinstance(numbers, dict)
        assert numbers["y"].tolist() == [[3, 4]]
        shown = self.BOTH.encode(self.VALUES, pictures=True)["outputs"]
        assert isinstance(shown, dict)
        assert shown["z"].tolist() == [0.5]
        file = io.BytesIO(base64.b64decode(shown["y"], validate=True))
        assert np.asarray(Image.open(file)).tolist() == [[3, 4]]

    def test_a_model_without_pictures(self) -> None:
        self.BOTH.check_pictures()
        with pytest.raises(InvalidInput, match="no output of this model is declared as a picture"):
            AnswerEncoder(make_manifest()).check_pictures()

    def test_a_file(self) -> None:
        body = b"".join(self.BOTH.encode_raw(PNG, [self.VALUES], many=False))
        assert np.asarray(Image.open(io.BytesIO(body))).tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[-1, 0]]), "classes from -1 to 0; a PNG mask has classes from 0 to 255"),
        (np.array([[0, 256]]), "classes from 0 to 256"),
        (np.zeros((0, 3), np.int64), r"empty, shape \[0, 3\]"),
    ],
)
def test_what_no_mask_can_be(array: Array, message: str) -> None:
    writer = PngWriter(output(np.zeros((1, 2), np.int64), MaskOutput()))
    with pytest.raises(NotAcceptable, match=message):
        writer.write(array)
