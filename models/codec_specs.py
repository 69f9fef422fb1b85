"""Describes a model's items for clients, and how its first output becomes an answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.categories import Categories, check_categories
from models.choices import Alpha, Fit, Interpolation, Polarity, Resampling, Scores, TextTask
from models.parts import Part, is_empty
from models.places import Boxes, check_places
from models.tensors import FileName, Name, TensorSpec

CropCorner = Literal["half-even", "down"]
Fill = Literal["border", "mean"]
Values = Literal["normalized", "levels"]


def is_none(value: object) -> bool:
    """Whether a field is left out."""
    return value is None


def is_normalized(values: object) -> bool:
    """Whether values are normalised, which older servers take for granted."""
    return values == "normalized"


class PicturePreprocess(Part):
    """How to convert a picture to an array [channels, height, width].

    The array is (value / 255 - mean) / std, per channel, in float32; or with `values` of `levels`
    the values of 0 to 255 as they are, in uint8. The model expects light-on-dark pictures.
    Polarity describes the input: `auto` examines the border of the picture and inverts
    dark-on-light ones; the two fixed values state the input, and `dark-on-light` is inverted.

    Fit selects how to change the shape to width x height: `pad` scales the whole picture to fit
    inside and fills the rest; `crop` scales its shorter side to `resize_shorter` pixels and cuts
    out the middle; `stretch` scales width and height separately, for square inputs optionally to
    `resize_shorter` pixels, and cuts out the middle; `none` leaves pictures as they are, of the
    sizes that the input takes, of which width and height are the largest. Crop corner says how
    half a pixel is rounded where the middle begins: `half-even`, as torchvision does, or `down`, as
    Hugging Face does.

    Interpolation is the filter of the scaling; see `models.inputs.fitting`.

    Fill is for `pad`: the median of the picture's outermost pixels (`border`), the `mean`, which
    becomes 0 in the array, or a level of 0..255 for all channels. It applies to the picture in the
    model's polarity. Alpha says what transparent pixels become: `white` puts the picture on white,
    `drop` uses the colours in the file.
    """

    width: int = Field(ge=1, le=4096)
    height: int = Field(ge=1, le=4096)
    channels: Literal[1, 3]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    polarity: Polarity = "light-on-dark"
    fit: Fit = "pad"
    resize_shorter: int | None = Field(default=None, ge=1, le=4096)
    interpolation: Interpolation = "bilinear"
    fill: Fill | Annotated[int, Field(ge=0, le=255)] = "border"
    alpha: Alpha = "white"
    crop_corner: CropCorner = "half-even"
    values: Values = Field(default="normalized", exclude_if=is_normalized)

    @model_validator(mode="after")
    def _one_number_per_channel(self) -> Self:
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise ValueError(f"mean and std need {self.channels} numbers, one per channel")
        if any(value <= 0 for value in self.std):
            raise ValueError("std must be positive")
        plain = set(self.mean) == {0.0} and set(self.std) == {1.0}
        if self.values == "levels" and not plain:
            raise ValueError("levels are not normalised: mean must be 0, and std 1")
        return self

    @model_validator(mode="after")
    def _the_crop_lies_inside(self) -> Self:
        if self.fit in ("pad", "none") and self.resize_shorter is not None:
            raise ValueError("resize_shorter is only for fit 'crop' or 'stretch'")
        if self.fit == "stretch" and self.resize_shorter and self.width != self.height:
            raise ValueError(
                "fit 'stretch' with resize_shorter needs as many pixels across as down, got "
                f"{self.width} x {self.height}"
            )
        if self.fit != "pad" and self.fill != "border":
            raise ValueError("fill is only for fit 'pad'")
        if self.fill == "mean" and not all(0 <= value <= 1 for value in self.mean):
            raise ValueError(f"fill 'mean' needs a mean from 0 to 1, got {list(self.mean)}")
        largest = max(self.width, self.height)
        is_cut = self.fit == "crop" or self.resize_shorter is not None
        if is_cut and (self.resize_shorter or 0) < largest:
            raise ValueError(
                f"fit {self.fit!r} needs resize_shorter, at least {largest} for {self.width} x "
                f"{self.height} pixels"
            )
        return self

    @property
    def dtype(self) -> Literal["float32", "uint8"]:
        """The dtype of the array."""
        return "float32" if self.values == "normalized" else "uint8"


class CodecPart(Part):
    """The common part of all codecs: labels of the first output, and how it becomes scores.

    `scores` names the function that the codec applies to the first output: `softmax`, `sigmoid`, or
    `none` if the output already is the score. `top_k` is the number of highest scores in JSON
    answers unless the caller asks for another number; None: all.

    For outputs with counted rows, such as the boxes of a detector: `ranked_by` is the output with
    the score of each row. JSON answers then have the `top_k` highest rows in descending order, none
    below `threshold`. `classes` is the output with the class of each row, an index into `labels`.
    """

    labels: tuple[str, ...] | None = None
    scores: Scores = "none"
    top_k: int | None = Field(default=None, ge=1)
    ranked_by: Name | None = None
    threshold: float | None = None
    classes: Name | None = None

    @model_validator(mode="after")
    def _ranks_what_it_chooses(self) -> Self:
        if self.threshold is not None and self.ranked_by is None:
            raise ValueError("a threshold needs ranked_by, the output that it is for")
        if self.classes is not None and self.labels is None:
            raise ValueError(f"classes is {self.classes!r}, but there are no labels")
        if self.ranked_by is not None and self.labels is not None and self.classes is None:
            raise ValueError("labels of ranked rows need classes, the output with their indices")
        return self

    @property
    def score_labels(self) -> tuple[str, ...] | None:
        """Labels of the first output if it has one score per label; None: it does not."""
        return self.labels if self.classes is None else None

    def has_scores(self, first: TensorSpec) -> bool:
        """Whether there are scores to rank, of classes or of counted rows."""
        if self.ranked_by is not None:
            return True
        is_scored = self.score_labels is not None or self.scores != "none"
        return is_scored and len(first.item_shape) == 1


class TensorCodecSpec(CodecPart):
    """Items that are tensors: nested or flat numbers, names of categories, or raw bytes."""

    kind: Literal["tensor"] = "tensor"
    categories: tuple[Categories, ...] = Field(default=(), exclude_if=is_empty)


class ImageCodecSpec(CodecPart):
    """Items that are PNG, JPEG, WebP or GIF pictures; accepts preprocessed tensors too.

    With several inputs, `input` is the one that the picture becomes; the others are tensors, as for
    `tensor`. Answers to pictures have `boxes` and `masks`, which are outputs, in the caller's
    picture.
    """

    kind: Literal["image"] = "image"
    preprocess: PicturePreprocess
    input: Name | None = Field(default=None, exclude_if=is_none)
    boxes: tuple[Boxes, ...] = Field(default=(), exclude_if=is_empty)
    masks: tuple[Name, ...] = Field(default=(), exclude_if=is_empty)

    def input_of(self, inputs: Sequence[TensorSpec]) -> TensorSpec:
        """Return the input that the picture becomes.

        Raises:
            ValueError: if there is none of that name, or several and none is named.
        """
        if self.input is None and len(inputs) == 1:
            return inputs[0]
        for spec in inputs:
            if spec.name == self.input:
                return spec
        raise ValueError(
            f"the picture becomes the input {self.input!r}, and the inputs are "
            f"{[spec.name for spec in inputs]}"
        )


class AudioCodecSpec(CodecPart):
    """Items that are WAV or FLAC files; accepts samples as tensors too.

    The first input has the samples of one channel, the mean of the file's, from -1 to 1. It is the
    only one, or the other one is the mask of its padding, which the codec fills.

    Attributes:
        rate: samples per second of the input.
        resampling: how files of another rate are converted, by the package soxr; none: they are
            refused.
    """

    kind: Literal["audio"] = "audio"
    rate: int = Field(ge=1000, le=768_000)
    resampling: Resampling = "soxr-hq"


class TextCodecSpec(CodecPart):
    """Items that are texts, which a tokenizer converts to tokens; accepts token ids too.

    Attributes:
        tokenizer: a file of the artifact, in the format of Hugging Face `tokenizers`.
        task: the meaning of the first output: `embed`, a vector; `classify`, a score per label;
            `rerank`, one score of a pair of texts; `classify-tokens`, a score per token and label.
        max_tokens: most tokens of an item, including special ones; longer texts are truncated.
        pairs: whether an item is two texts.
        prompt: the prefix of every text.
        ids: the input for the token ids.
        mask: the input with 1 for every token; None: the model has none.
        type_ids: the input with 0 for tokens of the first text and 1 for those of the second.
    """

    kind: Literal["text"] = "text"
    tokenizer: FileName = "tokenizer.json"
    task: TextTask
    max_tokens: int = Field(ge=1, le=1_000_000)
    pairs: bool = False
    prompt: str = ""
    ids: Name = "input_ids"
    mask: Name | None = "attention_mask"
    type_ids: Name | None = None

    @property
    def of_tokens(self) -> bool:
        """Whether the first output has scores for each token."""
        return self.task == "classify-tokens"

    @property
    def inputs(self) -> tuple[Name, ...]:
        """The names of the inputs that the codec fills."""
        return tuple(name for name in (self.ids, self.mask, self.type_ids) if name is not None)


CodecSpec = Annotated[
    TensorCodecSpec | ImageCodecSpec | AudioCodecSpec | TextCodecSpec, Field(discriminator="kind")
]


def categories_of(codec: CodecSpec) -> tuple[Categories, ...]:
    """Return the categories of a model's inputs."""
    return codec.categories if isinstance(codec, TensorCodecSpec) else ()


def check_codec(
    codec: CodecSpec,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    files: Collection[FileName],
) -> None:
    """Check that a codec fits the model.

    Raises:
        ValueError: with the contradiction.
    """
    first = outputs[0]
    _check_labels(codec, first)
    if codec.scores == "softmax" and not first.item_shape:
        raise ValueError("a softmax needs a first output with an axis besides the batch")
    if isinstance(codec, TensorCodecSpec):
        check_categories(codec.categories, inputs)
    if isinstance(codec, TextCodecSpec):
        _check_text(codec, inputs, files)
    if isinstance(codec, ImageCodecSpec):
        shape = (codec.preprocess.channels, codec.preprocess.height, codec.preprocess.width)
        dtype, spec = codec.preprocess.dtype, codec.input_of(inputs)
        if spec.dtype != dtype or not spec.accepts(shape):
            raise ValueError(f"pictures need an input of {dtype} and shape {[-1, *shape]}")
        if spec.nan:
            raise ValueError("pictures have no missing values: declare the input without `or nan`")
        if codec.preprocess.fit == "none" and (codec.boxes or codec.masks):
            raise ValueError("boxes and masks of pictures that are not scaled need no mapping")
        check_places(codec.boxes, codec.masks, outputs)
    if isinstance(codec, AudioCodecSpec):
        check_sound(inputs)
    if codec.top_k is not None and not codec.has_scores(first):
        raise ValueError(
            "top_k needs labels, or scores by softmax or sigmoid, and a first output with one "
            f"axis besides the batch; or ranked_by; got shape {list(first.shape)}"
        )


def check_sound(inputs: Sequence[TensorSpec]) -> None:
    """Check that a model takes sounds.

    Raises:
        ValueError: if it does not, with the inputs that it needs.
    """
    first, *others = inputs
    masks = [dimension.mask for dimension in first.dimensions if dimension.mask is not None]
    is_sound = first.dtype == "float32" and first.item_shape[:-1] in ((), (1,)) and not first.nan
    if not is_sound or not first.item_shape or [spec.name for spec in others] != masks:
        raise ValueError(
            "sounds need one input, float32 of shape [-1, n] or [-1, 1, n], and after it nothing "
            "but the mask of n, if n is padded; and no `or nan`"
        )


def _check_labels(codec: CodecPart, first: TensorSpec) -> None:
    labels = codec.score_labels
    if labels is None:
        return
    of_tokens = isinstance(codec, TextCodecSpec) and codec.of_tokens
    expected_shape = (-1, *(-1,) * of_tokens, len(labels))
    if first.shape != expected_shape:
        raise ValueError(
            f"{len(labels)} labels need a first output of shape {list(expected_shape)}, got "
            f"{list(first.shape)}"
        )


def _check_text(
    codec: TextCodecSpec, inputs: Sequence[TensorSpec], files: Collection[FileName]
) -> None:
    if codec.of_tokens and codec.pairs:
        raise ValueError("classify-tokens is for one text, not for pairs")
    names = [spec.name for spec in inputs]
    if sorted(codec.inputs) != sorted(names):
        raise ValueError(f"the text codec feeds {list(codec.inputs)}, the inputs are {names}")
    for spec in inputs:
        if spec.dtype != "int64" or len(spec.item_shape) != 1:
            raise ValueError(f"{spec.name!r} must be int64 with one axis besides the batch")
        if not spec.axes[0].least <= codec.max_tokens <= spec.axes[0].most:
            raise ValueError(
                f"max_tokens is {codec.max_tokens}, but {spec.name!r} takes sizes of "
                f"{spec.axes[0].least} to {spec.axes[0].most}"
            )
    if codec.tokenizer not in files:
        raise ValueError(f"the text codec names {codec.tokenizer!r}, which has no digest")
