"""The options for what clients send to an adopted model and what they receive."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from pydantic import ValidationError

from export.errors import ExportError, UsageError
from export.reading import sounds
from export.reading.mar import IMAGENET_MEAN, IMAGENET_STD, PLAIN, Defaults
from models.categories import Categories, check_categories
from models.choices import Scores
from models.codec_specs import (
    AudioCodecSpec,
    CodecSpec,
    Fill,
    ImageCodecSpec,
    PicturePreprocess,
    TensorCodecSpec,
)
from models.places import BoxForm, check_places
from models.rows import check_rows
from models.tensors import TensorSpec

EXAMPLE = "--input 'float32[-1,3,224,224]'"
OF_PICTURES = (  # options of --codec image
    *("preprocess", "mean", "std", "polarity"),
    *("fit", "resize_shorter", "interpolation", "fill", "alpha"),
    *("boxes", "mask"),
)
OF_SCALING = ("fit", "resize_shorter", "interpolation", "fill")  # not for pictures of free size
OF_FILES = {  # options of the codecs of files, and what these are
    "image": (OF_PICTURES, "pictures"),
    "audio": (("rate", "resampling"), "sounds"),
}
LEVEL = re.compile(r"[0-9]{1,3}")
IMAGENET = "imagenet"  # in place of numbers
RESIZE = 256 / 224  # the usual ratio of the resized side to the crop


def codec_of(
    args: argparse.Namespace,
    defaults: Defaults,
    inputs: tuple[TensorSpec, ...],
    labels: tuple[str, ...] | None,
) -> CodecSpec:
    """Return the codec, from the options and an archive's defaults.

    Raises:
        UsageError: if the options contradict each other, or the inputs.
    """
    scores: Scores = args.scores or defaults.scores
    if args.top_k is not None and args.top_k < 1:
        raise UsageError(f"--top-k must be at least 1, got {args.top_k}")
    common = {
        "labels": labels,
        "scores": scores,
        "top_k": args.top_k,
        "ranked_by": args.ranked_by,
        "threshold": args.threshold,
        "classes": args.classes,
    }
    kind = args.codec or defaults.codec
    _check_options(args, kind)
    if kind == "tensor":
        return _build_codec(TensorCodecSpec, **common)
    if kind == "audio":
        return _build_codec(AudioCodecSpec, **sounds.fields_of(args, inputs), **common)
    picture = _picture(inputs)
    preprocess = _preprocess(args, defaults, picture)
    boxes = [_boxes(text) for text in args.boxes or ()]
    if preprocess.fit == "none" and (boxes or args.mask):
        raise UsageError(
            "--boxes and --mask are for pictures that are scaled; here the model sees the caller's "
            "own pixels, so leave them out, and let the model return boxes in pixels"
        )
    return _build_codec(
        ImageCodecSpec,
        preprocess=preprocess,
        input=picture.name if len(inputs) > 1 else None,
        boxes=boxes,
        masks=args.mask or (),
        **common,
    )


def _check_options(args: argparse.Namespace, kind: str) -> None:
    for other, (options, what) in OF_FILES.items():
        strays = [name for name in options if getattr(args, name) is not None]
        if strays and kind != other:
            advice = f": add --codec {other}" if kind == "tensor" else f", not for --codec {kind}"
            raise UsageError(f"--{strays[0].replace('_', '-')} is for {what}{advice}")


def with_categories(
    codec: CodecSpec, categories: Sequence[Categories], inputs: Sequence[TensorSpec]
) -> CodecSpec:
    """Return a codec with the categories of inputs.

    Raises:
        UsageError: if the inputs do not take their indices.
    """
    if not categories:
        return codec
    if not isinstance(codec, TensorCodecSpec):
        raise UsageError(f"--categories is for models of numbers, not for --codec {codec.kind}")
    try:
        check_categories(categories, inputs)
    except ValueError as error:
        raise UsageError(f"--categories: {error}") from error
    return codec.model_copy(update={"categories": tuple(categories)})


def _boxes(text: str) -> dict[str, object]:
    name, _, rest = text.partition("=")
    form, *more = rest.split(",")
    if form not in get_args(BoxForm) or not set(more) <= {"relative", "columns"}:
        raise UsageError(
            f"--boxes {text!r}: must be NAME=FORM with a FORM of {', '.join(get_args(BoxForm))}, "
            "perhaps with ,relative or ,columns, such as boxes=cxcywh,relative"
        )
    return {
        "output": name,
        "form": form,
        "relative": "relative" in more,
        "columns": "columns" in more,
    }


def _build_codec(
    codec: type[TensorCodecSpec | ImageCodecSpec | AudioCodecSpec], **fields: object
) -> CodecSpec:
    try:
        return codec.model_validate(fields)
    except ValidationError as error:
        options = "--boxes, --mask, --ranked-by, --threshold, --classes"
        raise UsageError(f"{options}: {first_of(error)}") from error


def with_counts(args: argparse.Namespace, outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Apply `--count` to the outputs; counting outputs come last.

    Raises:
        UsageError: if it names an output that does not exist, or gives one two counts.
    """
    counts: dict[str, str] = {}
    for text in args.count or ():
        count, _, names = text.partition("=")
        for name in names.split(","):
            if counts.setdefault(name, count) != count:
                raise UsageError(
                    f"--count: {name!r} has two counts, {counts[name]!r} and {count!r}; give one"
                )
    output_names = [spec.name for spec in outputs]
    if strays := [name for name in counts if name not in output_names]:
        raise UsageError(
            f"--count: {strays[0]!r} is not an output; give COUNT=NAME,NAME with names of these: "
            f"{', '.join(output_names)}"
        )
    specs = [spec.model_copy(update={"count": counts.get(spec.name)}) for spec in outputs]
    return tuple(sorted(specs, key=lambda spec: spec.name in counts.values()))


def _is_picture(spec: TensorSpec) -> bool:
    shape = spec.item_shape
    return spec.dtype in ("float32", "uint8") and len(shape) == 3 and shape[0] in (1, 3)


def _picture(inputs: Sequence[TensorSpec]) -> TensorSpec:
    """Return the only input that a picture can become."""
    candidates = [spec for spec in inputs if _is_picture(spec)]
    if len(candidates) != 1:
        raise UsageError(
            "--codec image needs one --input float32[-1,C,H,W], or uint8, where C is 1 or 3, such "
            f"as {EXAMPLE}; others may be tensors of other shapes; got {len(candidates)}"
        )
    return candidates[0]


def _preprocess(
    args: argparse.Namespace, defaults: Defaults, picture: TensorSpec
) -> PicturePreprocess:
    is_levels = picture.dtype == "uint8"
    if is_levels and (args.mean, args.std) != (None, None):
        raise UsageError(
            "--mean and --std are for float32: a uint8 input gets the levels of 0 to 255 as they "
            "are, which the model scales itself"
        )
    channels, height, width = (axis.most for axis in picture.axes)
    if not picture.is_fixed:
        _check_unscaled(args, defaults)
        defaults = replace(defaults, fit="none", resize_shorter=None, fill="border")
    if defaults.picture is not None and defaults.picture[1:] != (height, width):
        file, *size = defaults.picture
        raise UsageError(
            f"--preprocess {file} is for inputs of {size[0]} x {size[1]} pixels (height x "
            f"width), but the input has {height} x {width}; change --input or the file"
        )
    fit = args.fit or defaults.fit
    theirs = defaults if fit == defaults.fit else PLAIN
    shorter = args.resize_shorter or theirs.resize_shorter
    if fit == "crop" and shorter is None:
        shorter = round(max(width, height) * RESIZE)
    fields = {
        "width": width,
        "height": height,
        "channels": channels,
        **_figures(args, PLAIN if is_levels else defaults, channels),
        "values": "levels" if is_levels else "normalized",
        "polarity": args.polarity or "light-on-dark",
        "fit": fit,
        "resize_shorter": shorter,
        "interpolation": args.interpolation or defaults.interpolation,
        "fill": _fill(args.fill or theirs.fill),
        "alpha": args.alpha or "white",
        "crop_corner": theirs.crop_corner,
    }
    try:
        return PicturePreprocess.model_validate(fields)
    except ValidationError as error:
        raise UsageError(f"--codec image: {first_of(error)}") from error


def _check_unscaled(args: argparse.Namespace, defaults: Defaults) -> None:
    options = [name for name in OF_SCALING if getattr(args, name) not in (None, "none")]
    if options or defaults.picture is not None:
        option = options[0] if options else "preprocess"
        raise UsageError(
            f"--{option.replace('_', '-')} is for pictures that are scaled to one size, but H and "
            "W in --input are free: give numbers for both, or leave it out"
        )


def with_sizes(codec: CodecSpec, inputs: Sequence[TensorSpec]) -> CodecSpec:
    """Return the codec with the largest sizes of the inputs, which may have been found by trial.

    Raises:
        UsageError: if pictures are larger than servers decode.
    """
    if not isinstance(codec, ImageCodecSpec) or codec.preprocess.fit != "none":
        return codec
    _, height, width = (axis.most for axis in codec.input_of(inputs).axes)
    try:
        how = PicturePreprocess.model_validate(
            {**codec.preprocess.model_dump(), "height": height, "width": width}
        )
    except ValidationError as error:
        raise UsageError(
            f"--codec image: pictures of up to {width} x {height} pixels (width x height): "
            f"{first_of(error)}; give --input smaller bounds, such as h<=1024"
        ) from error
    return codec.model_copy(update={"preprocess": how})


def _figures(
    args: argparse.Namespace, defaults: Defaults, channels: int
) -> dict[str, tuple[float, ...]]:
    """Return mean and std; if one is ImageNet's, so is the other unless it is given too."""
    if IMAGENET in (args.mean, args.std):
        if channels != len(IMAGENET_MEAN):
            raise UsageError(f"imagenet has 3 channels, the input has {channels}")
        defaults = replace(defaults, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return {
        "mean": _floats("--mean", args.mean) or defaults.mean or (0.0,) * channels,
        "std": _floats("--std", args.std) or defaults.std or (1.0,) * channels,
    }


def _fill(text: str) -> str | int:
    if text in get_args(Fill):
        return text
    if LEVEL.fullmatch(text) is None or int(text) > 255:
        raise UsageError(f"--fill {text!r}: must be a level from 0 to 255, mean or border")
    return int(text)


def _floats(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None or text == IMAGENET:
        return None
    try:
        return tuple(float(each) for each in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"{option} {text!r}: must be comma-separated numbers, one per channel; or {IMAGENET}"
        ) from error


def assumptions(args: argparse.Namespace, defaults: Defaults, codec: CodecSpec) -> tuple[str, ...]:
    """Return a sentence on the defaults of pictures that nothing states, or nothing if all are."""
    if not isinstance(codec, ImageCodecSpec) or defaults.codec == "image":
        return ()  # a file or an archive states the rest
    how = codec.preprocess
    values: dict[str, str] = {}
    if how.fit != "none":
        values = {"fit": how.fit, "interpolation": how.interpolation}
    if how.fit == "pad":
        values["fill"] = str(how.fill)
    if how.fit == "crop":
        values["resize_shorter"] = str(how.resize_shorter)
    if how.values == "normalized":
        values |= {"mean": "0", "std": "1"}
    if IMAGENET in (args.mean, args.std):
        values = {name: value for name, value in values.items() if name not in ("mean", "std")}
    values |= {"alpha": how.alpha, "polarity": how.polarity}
    options = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in values.items()
        if getattr(args, name) is None
    ]
    if not options:
        return ()
    file = "" if how.fit == "none" else ", or --preprocess FILE"
    sentence = (
        f"pictures are prepared with {', '.join(options)}, because nothing says how they were in "
        f"training; state these options{file}"
    )
    return (sentence,)


def hint(args: argparse.Namespace, codec: CodecSpec, inputs: Sequence[TensorSpec]) -> str | None:
    """Return a hint if clients could send pictures but no codec was given."""
    if args.codec is not None or isinstance(codec, ImageCodecSpec) or len(inputs) != 1:
        return None
    if not _is_picture(inputs[0]):
        return None
    is_colour = inputs[0].item_shape[0] == 3 and inputs[0].dtype == "float32"
    figures = " --mean imagenet" if is_colour else ""
    return (
        f"the input looks like a picture: with --codec image{figures} clients can send PNG, "
        "JPEG and WebP files; --codec tensor means that they send numbers"
    )


def check_outputs(codec: CodecSpec, outputs: Sequence[TensorSpec], *, by_command: bool) -> None:
    """Raise if labels or scores do not fit; the error's class depends on their source."""
    try:
        check_rows((), outputs, codec.ranked_by, codec.classes)
    except ValueError as error:
        raise UsageError(f"--count, --ranked-by, --classes: {error}") from error
    if isinstance(codec, ImageCodecSpec):
        try:
            check_places(codec.boxes, codec.masks, outputs)
        except ValueError as error:
            raise UsageError(f"--boxes, --mask: {error}") from error
    labels, first = codec.score_labels, outputs[0]
    if labels is not None and first.item_shape != (len(labels),):
        kind = UsageError if by_command else ExportError
        raise kind(
            f"{len(labels)} labels need a first output of shape [-1, {len(labels)}], "
            f"{first.name!r} is {list(first.shape)}; give --labels a file that fits, or "
            "--output NAME=FILE for the output that has these labels"
        )
    if codec.scores == "softmax" and not first.item_shape:
        raise UsageError(f"--scores softmax needs more than one number, got {list(first.shape)}")
    if codec.top_k is not None and not codec.has_scores(first):
        raise UsageError(
            "--top-k needs --labels, or --scores softmax or sigmoid, and a first output of shape "
            f"[-1, N], or --ranked-by; the model's is {list(first.shape)}"
        )


def first_of(error: ValidationError) -> str:
    """Return the first problem, in one sentence."""
    return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
