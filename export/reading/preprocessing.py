"""Reads files in which other libraries describe how a picture becomes a model's input.

Follows `torchvision.transforms._presets.ImageClassification` (torchvision 0.28), the image
processors of Hugging Face transformers 5.23, and timm 1.0: `timm.data.resolve_data_config` and
`transforms_factory.transforms_imagenet_eval`. Nothing in a file is evaluated.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from export.errors import UsageError
from export.reading.mar import Defaults
from export.reading.text_files import read_text
from models.choices import Fit, Interpolation
from models.codec_specs import CropCorner, Fill
from models.parts import Part

MAX_BYTES = 64 * 1024
FORMATS = (
    "what `print(weights.transforms())` of torchvision prints (ImageClassification), "
    "preprocessor_config.json of Hugging Face, or the dict of timm's resolve_data_config"
)
OTHERWISE = (
    "correct the file, or leave out --preprocess and describe the pictures with --mean, --std, "
    "--fit, --resize-shorter and --interpolation"
)
TORCHVISION = re.compile(r"ImageClassification\((.*)\)", re.DOTALL)
# Numbers in brackets, or words with dots. torchvision prints no commas between arguments.
ARGUMENT = re.compile(r"\s*(\w+)=(\[[-+.,\s\de]*\]|\([-+.,\s\de]*\)|[\w.]+)\s*,?\s*")
RESAMPLING: Mapping[int, Interpolation] = {  # Pillow's numbers
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
}
# Hugging Face's processors that resize, crop, rescale and normalise in this order, as their keys
# say. Those whose integer `size` is the shorter side, and those where it is both sides, if there is
# a crop; without one it must be both.
SHORTER = ("Bit", "ChineseCLIP", "CLIP", "MobileNetV1", "MobileNetV2")
SQUARE = ("Beit", "DeiT")
PLAIN = ("Blip", "Segformer", "Siglip", "ViT", *SHORTER, *SQUARE)
CONVNEXT = "ConvNext"  # resizes to size / crop_pct and cuts out `size`; stretches to 384 and more
CONVNEXT_STRETCHES = 384
SUFFIX = re.compile(r"(FeatureExtractor|ImageProcessor(Fast|Pil)?)$")
WITHOUT_EFFECT = (  # keys of Hugging Face that do not change the array of a colour picture
    *("_valid_processor_keys", "device", "disable_grouping", "do_convert_rgb"),
    *("do_reduce_labels", "processor_class", "return_tensors"),
)
Side = Annotated[int, Field(ge=1, le=4096)]  # pixels, as in the manifest
PartT = TypeVar("PartT", bound=Part)


class UnsupportedPreprocessing(UsageError):
    """A file says what is not possible; `reason` is the reason without advice on options."""

    def __init__(self, why: str) -> None:
        super().__init__(f"--preprocess {why}; {OTHERWISE}")
        self.reason = why


@dataclass(frozen=True, slots=True)
class Steps:
    """The preprocessing of RGB pictures to float32 [3, height, width]; None: the file lacks it."""

    height: int
    width: int
    fit: Fit
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    interpolation: Interpolation | None
    resize_shorter: int | None = None
    fill: Fill | None = None
    crop_corner: CropCorner = "half-even"


def apply(args: argparse.Namespace, defaults: Defaults) -> tuple[Defaults, tuple[str, ...]]:
    """Return the defaults with those of the file `--preprocess`, and a sentence on overrides.

    Raises:
        UsageError: if the file cannot be read, is in no known format, or says what is not possible.
    """
    file: Path = args.preprocess
    steps = parse(read_text("--preprocess", file, MAX_BYTES), file.name)
    names = ("fit", "mean", "std", "interpolation", "resize_shorter", "fill")
    options = [name for name in names if getattr(args, name) is not None]
    for name, key in (("mean", "image_mean"), ("std", "image_std"), ("interpolation", "resample")):
        if getattr(steps, name) is None and name not in options:
            raise UsageError(
                f"--preprocess {file.name} has no {key!r}, and its default depends on the version "
                f"of the library: add --{name}"
            )
    flags = [f"--{name.replace('_', '-')}" for name in options if getattr(steps, name) is not None]
    verb = "replaces" if len(flags) == 1 else "replace"
    sentence = f"{' and '.join(flags)} of the command line {verb} what {file.name} says"
    return replace(
        defaults,
        codec="image",
        inputs=defaults.inputs or (f"float32[-1,3,{steps.height},{steps.width}]",),
        mean=steps.mean,
        std=steps.std,
        fit=steps.fit,
        resize_shorter=steps.resize_shorter,
        interpolation=steps.interpolation or "bilinear",
        fill=steps.fill or "border",
        crop_corner=steps.crop_corner,
        picture=(file.name, steps.height, steps.width),
    ), ((sentence,) if flags else ())


def parse(text: str, what: str) -> Steps:
    """Parse the text of a file.

    Args:
        text: in one of `FORMATS`.
        what: the file's name, for messages.

    Raises:
        UsageError: if it is in none of them, or describes what this server cannot do.
    """
    if match := TORCHVISION.fullmatch(text.strip()):
        return _torchvision(_arguments(match[1], what), what)
    fields = _mapping(text)
    if "input_size" in fields:
        return _timm(fields, what)
    if any(key.startswith(("do_", "image_")) for key in fields):
        return of_huggingface(fields, what)
    raise UsageError(f"--preprocess {what} is none of these: {FORMATS}")


def _mapping(text: str) -> dict[str, Any]:
    """Return a JSON object, or a dict of literals as Python prints it; empty: it is neither."""
    for parse_text in (json.loads, ast.literal_eval):
        try:
            value = parse_text(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return value
    return {}


def _arguments(text: str, what: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    at = 0
    while at < len(text.rstrip()):
        argument = ARGUMENT.match(text, at)
        if argument is None or argument[1] in arguments:
            _refuse(what, repr(text[at : at + 40].strip()), "must be KEY=VALUE, each key once")
        key, value = argument[1], argument[2]
        try:
            arguments[key] = ast.literal_eval(value) if value[0] in "[(" else value
        except (ValueError, SyntaxError):
            _refuse(what, key, f"{value} is not a list of numbers")
        at = argument.end()
    return arguments


class _Torchvision(Part):
    crop_size: tuple[Side, ...] = Field(min_length=1, max_length=2)
    resize_size: tuple[Side, ...] = Field(min_length=1, max_length=2)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Annotated[
        Interpolation,
        BeforeValidator(lambda value: str(value).removeprefix("InterpolationMode.").lower()),
    ]


class _Timm(Part):
    input_size: tuple[Literal[3], Side, Side]
    interpolation: Interpolation
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float = Field(ge=0.1, le=1)
    crop_mode: Literal["center", "squash", "border"] = "center"


class _PictureSize(Part):
    """Of `size` and `crop_size`; `edge` stands for a number without a name."""

    edge: Side | None = None
    shortest_edge: Side | None = None
    height: Side | None = None
    width: Side | None = None


def _as_size(value: object) -> object:
    return {"edge": value} if isinstance(value, int) else value


class _HuggingFace(Part):
    image_processor_type: str = "ViT"
    feature_extractor_type: str = "ViT"
    size: Annotated[_PictureSize, BeforeValidator(_as_size)]
    crop_size: Annotated[_PictureSize, BeforeValidator(_as_size)] | None = None
    resample: int | None = None
    image_mean: tuple[float, ...] | None = None
    image_std: tuple[float, ...] | None = None
    rescale_factor: float = Field(default=1 / 255, gt=0)
    crop_pct: float | None = Field(default=None, ge=0.1, le=1)
    do_resize: Literal[True] = True
    do_center_crop: bool | None = None
    do_rescale: bool = True
    do_normalize: bool = True
    do_pad: Literal[False] = False
    do_flip_channel_order: Literal[False] = False
    rescale_offset: Literal[False] = False
    data_format: Literal["channels_first"] = "channels_first"

    @property
    def kind(self) -> str:
        """The name of the processor, without its suffix."""
        has_type = "image_processor_type" in self.model_fields_set
        return SUFFIX.sub(
            "", self.image_processor_type if has_type else self.feature_extractor_type
        )


def _torchvision(fields: dict[str, Any], what: str) -> Steps:
    config = _parse_fields(_Torchvision, fields, what)
    height, width = (config.crop_size * 2)[:2]
    size = config.resize_size
    fit: Fit = "crop"
    if len(size) == 2:
        fit = "stretch"
        if size[0] != size[1] and size != (height, width):
            _refuse(what, "resize_size", f"{list(size)} must be one number, or crop_size")
    return Steps(
        height=height,
        width=width,
        fit=fit,
        resize_shorter=None if size == (height, width) else size[0],
        mean=config.mean,
        std=config.std,
        interpolation=config.interpolation,
    )


def _timm(fields: dict[str, Any], what: str) -> Steps:
    config = _parse_fields(_Timm, fields, what)
    _, height, width = config.input_size
    fits: Mapping[str, Fit] = {"center": "crop", "squash": "stretch", "border": "pad"}
    fit = fits[config.crop_mode]
    is_cut = config.crop_pct < 1
    if fit == "pad" and is_cut:
        _refuse(what, "crop_pct", f"must be 1 with crop_mode 'border', got {config.crop_pct}")
    if height != width and (fit == "crop" or is_cut):
        _refuse(what, "input_size", f"{height} x {width} must be square for crop_mode and crop_pct")
    shorter = math.floor(height / config.crop_pct)
    return Steps(
        height=height,
        width=width,
        fit=fit,
        resize_shorter=shorter if fit == "crop" or is_cut else None,
        fill="mean" if fit == "pad" else None,
        mean=config.mean,
        std=config.std,
        interpolation=config.interpolation,
    )


def of_huggingface(fields: Mapping[str, Any], what: str) -> Steps:
    """Read the configuration of an image processor of Hugging Face.

    Raises:
        Refused: if it describes what this server cannot do.
    """
    values = {k: v for k, v in fields.items() if k not in WITHOUT_EFFECT and v is not None}
    kind = values.get("image_processor_type", values.get("feature_extractor_type"))
    if isinstance(kind, str) and SUFFIX.sub("", kind) not in (*PLAIN, CONVNEXT):
        kinds = ", ".join((*PLAIN, CONVNEXT))
        _refuse(what, "image_processor_type", f"{SUFFIX.sub('', kind)!r} is not one of {kinds}")
    config = _parse_fields(_HuggingFace, values, what)
    if config.resample is not None and config.resample not in RESAMPLING:
        names = ", ".join(f"{number} ({name})" for number, name in RESAMPLING.items())
        _refuse(what, "resample", f"{config.resample} must be one of {names}")
    if config.kind == CONVNEXT:
        height, width, fit, shorter = _convnext(config, what)
    else:
        height, width, fit, shorter = _plain(config, what)
    # (value * factor - mean) / std, as (value / 255 - mean / scale) / (std / scale)
    scale = 255 * (config.rescale_factor if config.do_rescale else 1)
    mean, std = config.image_mean, config.image_std
    if not config.do_normalize:
        mean, std = (0.0,) * 3, (1.0,) * 3
    return Steps(
        height=height,
        width=width,
        fit=fit,
        resize_shorter=shorter,
        mean=mean and tuple(value / scale for value in mean),
        std=std and tuple(value / scale for value in std),
        interpolation=None if config.resample is None else RESAMPLING[config.resample],
        crop_corner="down",
    )


def _plain(config: _HuggingFace, what: str) -> tuple[int, int, Fit, int | None]:
    """Return height, width, fit and resize_shorter."""
    if config.crop_pct is not None:
        _refuse(what, "crop_pct", f"is not a key of {config.kind}ImageProcessor")
    if config.crop_size is not None and config.do_center_crop is None:
        _refuse(what, "crop_size", "needs do_center_crop, true or false")
    size, edge = config.size, config.size.edge
    if not config.do_center_crop:
        height, width = _both(size, "size", what)
        return height, width, "stretch", None
    if config.crop_size is None:
        _refuse(what, "do_center_crop", "is true, but there is no crop_size")
    height, width = _both(config.crop_size, "crop_size", what)
    if edge is not None and config.kind not in (*SHORTER, *SQUARE):
        _refuse(what, "size", f'{edge} must be {{"shortest_edge": {edge}}}, or height and width')
    shorter = size.shortest_edge or (edge if config.kind in SHORTER else None)
    if shorter is not None:
        if (size.height, size.width) != (None, None):
            _refuse(what, "size", "must be shortest_edge, or height and width")
        return height, width, "crop", shorter
    resize = _both(size, "size", what)
    if resize == (height, width):
        return height, width, "stretch", None
    if resize[0] != resize[1] or height != width:
        _refuse(what, "size", f"{list(resize)} must be square, or equal to crop_size")
    return height, width, "stretch", resize[0]


def _convnext(config: _HuggingFace, what: str) -> tuple[int, int, Fit, int | None]:
    """Return height, width, fit and resize_shorter."""
    side = config.size.shortest_edge or config.size.edge
    if side is None:
        _refuse(what, "size", "must be shortest_edge for ConvNextImageProcessor")
    if config.do_center_crop:
        _refuse(what, "do_center_crop", "must be false for ConvNextImageProcessor")
    if side >= CONVNEXT_STRETCHES:
        return side, side, "stretch", None
    return side, side, "crop", int(side / (config.crop_pct or 224 / 256))


def _both(size: _PictureSize, key: str, what: str) -> tuple[int, int]:
    height, width = size.edge or size.height, size.edge or size.width
    if height is None or width is None or size.shortest_edge is not None:
        _refuse(what, key, "must be height and width, for pictures of one size")
    return height, width


def _parse_fields(kind: type[PartT], fields: dict[str, Any], what: str) -> PartT:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        unknown = [each for each in errors if each["type"] == "extra_forbidden"]
        first = (unknown or errors)[0]
        key = ".".join(map(str, first["loc"]))
        _refuse(what, key, "the key is unknown" if unknown else first["msg"])


def _refuse(what: str, key: str, problem: str) -> NoReturn:
    raise UnsupportedPreprocessing(f"{what}: {key}: {problem}")
