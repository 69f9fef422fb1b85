"""A file of another library gives the pictures that this library gives to its models.

All comparisons are of PNG pictures of at most `MAX_PIXELS`, and exact up to float32's rounding of
the normalisation, less than a hundredth of a grey level.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

from export.errors import UsageError
from export.options.payloads import add_codec
from export.reading import codecs, preprocessing
from export.reading.mar import IMAGENET_MEAN, IMAGENET_STD, PLAIN
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.inputs.preprocess import preprocess
from models.tensors import Array, TensorSpec
from tests.unit.models.pictures import encoded, noise

SIZES = [(300, 421), (335, 257), (230, 233)]  # with odd and even differences to the cuts
RESNET50_V2 = """ImageClassification(
    crop_size=[224]
    resize_size=[232]
    mean=[0.485, 0.456, 0.406]
    std=[0.229, 0.224, 0.225]
    interpolation=InterpolationMode.BILINEAR
)"""
COMMAS = (
    "ImageClassification(crop_size=[224], resize_size=[232], mean=[0.485, 0.456, 0.406], "
    "std=(0.229, 0.224, 0.225), interpolation=InterpolationMode.BILINEAR)\n"
)
CLIP: dict[str, Any] = {
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "CLIPImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": 224},
}
HALVES = [0.5, 0.5, 0.5]
VIT: dict[str, Any] = {
    "do_normalize": True,
    "do_resize": True,
    "image_mean": HALVES,
    "image_std": HALVES,
    "image_processor_type": "ViTFeatureExtractor",
    "resample": 2,
    "size": 224,
}
TIMM: dict[str, Any] = {
    "input_size": (3, 224, 224),
    "interpolation": "bicubic",
    "mean": IMAGENET_MEAN,
    "std": IMAGENET_STD,
    "crop_pct": 0.875,
    "crop_mode": "center",
}


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_codec(parser)
    return parser.parse_args(given)


def read(
    folder: Path, content: object, *given: str, shape: tuple[int, ...] | None = None
) -> tuple[PicturePreprocess, tuple[str, ...]]:
    """The preprocessing of `adopt --preprocess FILE`, and what is said."""
    file = folder / "steps"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    parsed = options("--preprocess", str(file), *given)
    defaults, message = preprocessing.apply(parsed, PLAIN)
    if shape is None:
        sizes = defaults.inputs[0].removeprefix("float32[").removesuffix("]").split(",")
        shape = tuple(map(int, sizes))
    inputs = (TensorSpec(name="x", dtype="float32", shape=shape),)
    codec = codecs.codec_of(parsed, defaults, inputs, None)
    assert isinstance(codec, ImageCodecSpec)
    return codec.preprocess, message


def normalised(picture: Image.Image, mean: Any, std: Any) -> Array:
    """Torchvision's ToTensor and Normalize."""
    values = np.asarray(picture, np.float32).transpose(2, 0, 1) / np.float32(255)
    figures = (np.array(each, np.float32)[:, None, None] for each in (mean, std))
    return np.asarray((values - next(figures)) / next(figures))


def resize(picture: Image.Image, side: int, resample: Image.Resampling) -> Image.Image:
    """Torchvision's Resize with one number, of a PIL picture."""
    width, height = picture.size
    short, long = min(width, height), max(width, height)
    new = int(side * long / short)
    return picture.resize((side, new) if width <= height else (new, side), resample)


def center_crop(picture: Image.Image, height: int, width: int) -> Image.Image:
    """Torchvision's CenterCrop."""
    top = round((picture.height - height) / 2.0)
    left = round((picture.width - width) / 2.0)
    return picture.crop((left, top, left + width, top + height))


def assert_equal(picture: Image.Image, how: PicturePreprocess, expected: Array) -> None:
    result = preprocess(encoded(picture), how)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=0, atol=0.01 / 255)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("text", [RESNET50_V2, COMMAS])
def test_torchvision(tmp_path: Path, text: str, size: tuple[int, int]) -> None:
    how, message = read(tmp_path, text)
    picture = Image.fromarray(noise(*size))
    cut = center_crop(resize(picture, 232, Image.Resampling.BILINEAR), 224, 224)
    np.testing.assert_array_equal(
        preprocess(encoded(picture), how), normalised(cut, IMAGENET_MEAN, IMAGENET_STD)
    )
    assert message == ()


def test_torchvision_with_two_sizes(tmp_path: Path) -> None:
    text = RESNET50_V2.replace("[232]", "[40, 40]").replace("BILINEAR", "BICUBIC")
    how, _ = read(tmp_path, text.replace("[224]", "[32, 24]").replace("[40, 40]", "[32, 24]"))
    picture = Image.fromarray(noise(61, 50))
    small = picture.resize((24, 32), Image.Resampling.BICUBIC)
    assert_equal(picture, how, normalised(small, IMAGENET_MEAN, IMAGENET_STD))
    how, _ = read(tmp_path, text.replace("[224]", "[33]"))
    cut = center_crop(picture.resize((40, 40), Image.Resampling.BICUBIC), 33, 33)
    assert_equal(picture, how, normalised(cut, IMAGENET_MEAN, IMAGENET_STD))


def timm_picture(picture: Image.Image, config: dict[str, Any]) -> Array:
    """`timm.data.transforms_factory.transforms_imagenet_eval` for a square input."""
    side = config["input_size"][1]
    resample = Image.Resampling[config["interpolation"].upper()]
    scaled = math.floor(side / config["crop_pct"])
    if config["crop_mode"] == "squash":
        cut = center_crop(picture.resize((scaled, scaled), resample), side, side)
    elif config["crop_mode"] == "border":  # ResizeKeepRatio(longest=1.0), CenterCropOrPad
        ratio = max(picture.width, picture.height) / scaled
        width, height = (round(each / ratio) for each in picture.size)
        small = picture.resize((width, height), resample)
        fill = tuple(round(255 * value) for value in config["mean"])
        cut = Image.new("RGB", (side, side), fill)
        cut.paste(small, ((side - width) // 2, (side - height) // 2))
    else:
        cut = center_crop(resize(picture, scaled, resample), side, side)
    return normalised(cut, config["mean"], config["std"])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"crop_pct": 1.0, "interpolation": "lanczos"},
        {"crop_mode": "squash", "crop_pct": 1.0},
        {"crop_mode": "border", "crop_pct": 1.0, "mean": HALVES, "std": HALVES},
    ],
)
def test_timm(tmp_path: Path, change: dict[str, Any], size: tuple[int, int]) -> None:
    config = TIMM | change
    picture = Image.fromarray(noise(*size))
    for content in (config, repr(config)):  # JSON, and as Python prints it
        how, message = read(tmp_path, content)
        assert_equal(picture, how, timm_picture(picture, config))
        assert message == ()


def hugging_face_picture(picture: Image.Image, config: dict[str, Any]) -> Array:
    """What the library's own processor makes, with Pillow."""
    kind = preprocessing.SUFFIX.sub("ImageProcessorPil", config["image_processor_type"])
    processor = getattr(transformers, kind)(**config)
    return np.asarray(processor(picture, return_tensors="np")["pixel_values"][0], np.float32)


SQUARE = {**CLIP, "size": {"height": 224, "width": 224}, "do_center_crop": False}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "config",
    [
        CLIP,
        {**CLIP, "size": 224, "crop_size": 200, "resample": 1},
        {**CLIP, "size": {"shortest_edge": 231}, "resample": 2},
        VIT,
        {**VIT, "size": {"height": 192, "width": 208}, "resample": 3, "do_convert_rgb": None},
        {**VIT, "rescale_factor": 1 / 127.5},
        {**VIT, "do_normalize": False},
        {**VIT, "do_rescale": False, "image_mean": [127.5] * 3, "image_std": [127.5] * 3},
        *(
            {**SQUARE, "image_processor_type": f"{kind}ImageProcessor"}
            for kind in ("Blip", "Segformer", "Siglip")
        ),
        *(
            {**CLIP, "image_processor_type": f"{kind}ImageProcessor"}
            for kind in preprocessing.SHORTER
        ),
        *(
            {**CLIP, "image_processor_type": f"{kind}ImageProcessor", "size": edges}
            for kind in preprocessing.SQUARE
            for edges in (256, {"height": 251, "width": 251}, {"height": 224, "width": 224})
        ),
        {**VIT, "image_processor_type": "ConvNextImageProcessor", "crop_pct": 0.875},
        {
            **VIT,
            "image_processor_type": "ConvNextFeatureExtractor",
            "size": {"shortest_edge": 384},
            "crop_pct": 0.95,
        },
    ],
)
def test_hugging_face(tmp_path: Path, config: dict[str, Any], size: tuple[int, int]) -> None:
    how, message = read(tmp_path, config)
    picture = Image.fromarray(noise(*size))
    expected = hugging_face_picture(picture, config)
    steps = preprocess(encoded(picture), how)
    assert steps.shape == expected.shape
    level = 1 / 255 / min(how.std)  # of 255
    np.testing.assert_allclose(steps, expected, rtol=0, atol=0.01 * level)
    assert message == ()


def test_options_replace_what_the_file_says(tmp_path: Path) -> None:
    how, message = read(tmp_path, CLIP, "--interpolation", "bilinear", "--mean", "0,0,0")
    assert (how.interpolation, how.mean, how.fit) == ("bilinear", (0, 0, 0), "crop")
    assert message == ("--mean and --interpolation of the command line replace what steps says",)
    how, _ = read(tmp_path, CLIP, "--fit", "pad")
    assert (how.fit, how.resize_shorter, how.crop_corner) == ("pad", None, "half-even")
    how, _ = read(tmp_path, CLIP, "--resize-shorter", "230")
    assert (how.resize_shorter, how.crop_corner) == (230, "down")
    timm = {**TIMM, "crop_mode": "border", "crop_pct": 1}
    how, message = read(tmp_path, timm, "--fill", "0", "--alpha", "drop")
    assert (how.fill, how.alpha, how.fit) == (0, "drop", "pad")
    assert message == ("--fill of the command line replaces what steps says",)


def test_an_option_for_a_missing_key(tmp_path: Path) -> None:
    config = {key: value for key, value in VIT.items() if key != "resample"}
    with pytest.raises(UsageError, match=r"has no 'resample', .*: add --interpolation"):
        read(tmp_path, config)
    how, message = read(tmp_path, config, "--interpolation", "bicubic")
    assert (how.interpolation, how.fit, message) == ("bicubic", "stretch", ())


def test_the_input_must_have_the_size_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"steps is for inputs of 224 x 224 pixels .* has 8 x 6"):
        read(tmp_path, VIT, shape=(-1, 3, 8, 6))


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is none of these: what `print(weights.transforms())` of torchvision prints"),
        ("__import__('os').system('false')", "is none of these"),
        ("{" * 60_000, "is none of these"),
        (RESNET50_V2.replace("mean=", "average="), "average: the key is unknown"),
        (RESNET50_V2.replace("std=", "mean="), "'mean=[0.229, 0.224, 0.225]\\n    interpola"),
        (RESNET50_V2.replace("[224]", "[2 24]"), "crop_size: [2 24] is not a list of numbers"),
        (RESNET50_V2.replace("[224]", "exec(1)"), "must be KEY=VALUE"),
        ({**TIMM, "crop_border_pixels": 4}, "crop_border_pixels: the key is unknown; correct"),
        ({**TIMM, "input_size": [3, 224, 256]}, "input_size: 224 x 256 must be square"),
        ({**TIMM, "crop_mode": "border"}, "crop_pct: must be 1 with crop_mode 'border', got 0.8"),
        ({**CLIP, "do_resize": False}, "do_resize: Input should be True"),
        ({**CLIP, "resample": 4}, "resample: 4 must be one of 0 (nearest), 1 (lanczos), 2 (bil"),
        ({**CLIP, "image_processor_type": "LevitImageProcessor"}, "'Levit' is not one of Blip,"),
        ({"image_processor_type": "Qwen2VLImageProcessor"}, "'Qwen2VL' is not one of Blip,"),
        ({**CLIP, "do_center_crop": False}, "size: must be height and width, for pictures of one"),
        ({**CLIP, "crop_size": {"shortest_edge": 224}}, "crop_size: must be height and width"),
        ({**CLIP, "size": {"shortest_edge": 256, "height": 256}}, "size: must be shortest_edge,"),
        ({**CLIP, "size": {"height": 256, "width": 300}}, "size: [256, 300] must be square, or"),
        ({**VIT, "size": 256, "crop_size": 224, "do_center_crop": True}, 'size: 256 must be {"sh'),
        (without(VIT, "size"), "size: Field required"),
        (without(VIT, "image_mean"), "has no 'image_mean', and its default depends on the"),
        (
            {**VIT, "image_processor_type": "ConvNextImageProcessor", "do_center_crop": True},
            "do_center_crop: must be false for ConvNextImageProcessor",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(UsageError) as excinfo:
        read(tmp_path, content)
    assert str(excinfo.value).startswith("--preprocess steps")
    assert message in str(excinfo.value)
    assert "\n" not in str(excinfo.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b" " * (64 * 1024 + 1), "at most 65,536 bytes are read"),
        ("{}".encode("utf-16"), "steps is not UTF-8: it begins with the byte order mark of UTF-16"),
        (None, "cannot read"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, data: bytes | None, message: str) -> None:
    file = tmp_path / "steps"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(UsageError, match=message):
        preprocessing.apply(options("--preprocess", str(file)), PLAIN)
