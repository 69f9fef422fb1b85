"""The contract between export and app: everything that a server knows about a model.

The manifest travels inside the artifact as `manifest.json`. A server relies on nothing else:
it never imports the Python class of the model.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from models.bounds import check_same_bounds
from models.padding import check_padding
from models.plan import Form, Plan, Precision
from models.processor import DeviceKind
from models.rows import check_rows
from models.tensors import EncodedArray, FileName, Name, Part, Sha256, TensorSpec, Tolerance

SCHEMA_VERSION: Literal[2] = 2
MANIFEST_FILE = "manifest.json"
DIGEST_FILE = "manifest.sha256"
SIGNATURE_FILE = "manifest.sig"
# Read whole into memory. Golden examples make it large: one of 3 x 224 x 224 numbers has 800 KB.
MAX_MANIFEST_BYTES = 256 * 1024 * 1024

Polarity = Literal["light-on-dark", "dark-on-light", "auto"]
Scores = Literal["softmax", "sigmoid", "none"]


class PicturePreprocess(Part):
    """How a picture becomes an array [channels, height, width]; see `models.preprocess`.

    The array is (value / 255 - mean) / std, per channel. Polarity says what the model was trained
    on and what to expect: `auto` examines the border of the picture and turns dark-on-light into
    light-on-dark; the two fixed ones state the input, and `dark-on-light` pictures are inverted.

    Fit says how a picture of another shape becomes width x height: `pad` scales the whole picture
    to fit inside and fills the rest; `crop` scales its shorter side to `resize_shorter` pixels and
    cuts out the middle.
    """

    width: int = Field(ge=1, le=4096)
    height: int = Field(ge=1, le=4096)
    channels: Literal[1, 3]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    polarity: Polarity = "light-on-dark"
    fit: Literal["pad", "crop"] = "pad"
    resize_shorter: int | None = Field(default=None, ge=1, le=4096)

    @model_validator(mode="after")
    def _one_number_per_channel(self) -> Self:
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise ValueError(f"mean and std need {self.channels} numbers, one per channel")
        if any(value <= 0 for value in self.std):
            raise ValueError("std must be positive")
        return self

    @model_validator(mode="after")
    def _the_crop_lies_inside(self) -> Self:
        if self.fit == "pad" and self.resize_shorter is not None:
            raise ValueError("resize_shorter is only for fit 'crop'")
        largest = max(self.width, self.height)
        if self.fit == "crop" and (self.resize_shorter or 0) < largest:
            raise ValueError(
                f"fit 'crop' needs resize_shorter, at least {largest} for {self.width} x "
                f"{self.height} pixels"
            )
        return self


class CodecPart(Part):
    """What every codec has: labels of the first output, and how it becomes scores.

    `scores` names the function that the codec applies to the first output: `softmax`, `sigmoid`, or
    `none` if the output already is the score. `top_k` is the number of highest scores in JSON
    answers unless the caller asks for another number; None: all.

    Of outputs with counted rows, such as the boxes of a detector: `ranked_by` is the output with
    the score of each row. JSON answers then have the rows in descending order, the `top_k` highest,
    and none below `threshold`. `classes` is the output with the class of each row, an index into
    `labels`.
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
        """Labels of the first output, which is one score for each; None: it is no such output."""
        return self.labels if self.classes is None else None

    def has_scores(self, first: TensorSpec) -> bool:
        """Whether there are scores to choose the highest from: of classes, or of counted rows."""
        if self.ranked_by is not None:
            return True
        scored = self.score_labels is not None or self.scores != "none"
        return scored and len(first.item_shape) == 1


class TensorCodecSpec(CodecPart):
    """Items are tensors: nested or flat numbers, or raw bytes."""

    kind: Literal["tensor"] = "tensor"


class ImageCodecSpec(CodecPart):
    """Items are PNG or JPEG pictures; preprocessed tensors are accepted too."""

    kind: Literal["image"] = "image"
    preprocess: PicturePreprocess


TextTask = Literal["embed", "classify", "rerank", "classify-tokens"]


class TextCodecSpec(CodecPart):
    """Items are texts, which a tokenizer turns into tokens; token ids are accepted too.

    Attributes:
        tokenizer: a file of the artifact, in the format of Hugging Face `tokenizers`.
        task: what the first output is: `embed`, a vector; `classify`, a score per label; `rerank`,
            one score of a pair of texts; `classify-tokens`, a score per token and label.
        max_tokens: tokens of one item at most, special ones included; longer texts are cut off.
        pairs: whether an item is two texts.
        prompt: what every text begins with.
        ids: the input that takes the token ids.
        mask: the input that takes 1 for every token; None: the model has none.
        type_ids: the input that takes 0 for tokens of the first text and 1 for those of the second.
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
        """Whether the first output has scores of each token."""
        return self.task == "classify-tokens"

    @property
    def inputs(self) -> tuple[Name, ...]:
        """The names of the inputs that it feeds."""
        return tuple(name for name in (self.ids, self.mask, self.type_ids) if name is not None)


CodecSpec = Annotated[TensorCodecSpec | ImageCodecSpec | TextCodecSpec, Field(discriminator="kind")]


class GoldenExample(Part):
    """One item and the eager model's answer, both without the batch axis."""

    inputs: dict[str, EncodedArray]
    outputs: dict[str, EncodedArray]


class Difference(Part):
    """The largest differences of one output, over everything that was compared."""

    max_absolute: float
    max_relative: float


class Parity(Part):
    """A form's distance from eager float32, measured by export over batch sizes and shapes."""

    outputs: dict[Name, Difference] = Field(min_length=1)
    batch_sizes: tuple[int, ...] = Field(min_length=1)
    batch_invariance: float = Field(
        description="largest difference between an item's answer alone and inside a batch"
    )
    padded_to: tuple[int, ...] = Field(
        default=(), description="sizes to which batches of smaller items were padded"
    )

    @property
    def max_absolute(self) -> float:
        """The largest over all outputs."""
        return max(each.max_absolute for each in self.outputs.values())


class FileDigest(Part):
    """The required digest and size of a file of the artifact."""

    sha256: Sha256
    bytes: int = Field(ge=0)


class NativeCode(Part):
    """Requirements of compiled code; elsewhere it crashes, so it is not loaded there."""

    architecture: str = Field(description="in the form of `uname -m`, such as x86_64")
    requires: tuple[str, ...] = Field(
        description="CPU flags as /proc/cpuinfo names them; on CUDA the one architecture, as sm_90"
    )


class Variant(Part):
    """One executable form of the model in its own file.

    `optimized` is the proof of its form after `torch.jit.optimize_for_inference` at load; None: not
    to be used. `native` is for compiled code only. `later_stages` are the files that run after
    `file`, each on the outputs of the one before: each may have its own device.
    """

    file: FileName
    later_stages: tuple[FileName, ...] = ()
    format: Literal["torchscript", "aotinductor"]
    precision: Precision
    made_by: str
    torch_version: str
    device_kinds: tuple[DeviceKind, ...] = Field(min_length=1)
    tolerance: Tolerance
    parity: Parity
    optimized: Parity | None = None
    accuracy: float | None = Field(
        default=None, ge=0, le=1, description="on held-out data; of its forms, the lower one's"
    )
    native: NativeCode | None = None
    interchangeable: bool = Field(
        default=True,
        description="whether the optimized form answers as the plain one does, to float32: only "
        "then may a plan mix the two",
    )
    reload_growth_bytes: int | None = Field(
        default=None, description="memory that is not released when the file is loaded again"
    )

    @model_validator(mode="after")
    def _native_only_where_compiled(self) -> Self:
        if (self.format == "aotinductor") != (self.native is not None):
            raise ValueError(f"{self.file}: `native` is only for the format aotinductor")
        if self.format == "aotinductor" and self.optimized is not None:
            raise ValueError(f"{self.file}: optimize_for_inference is only for torchscript")
        return self

    @model_validator(mode="after")
    def _stages_are_whole(self) -> Self:
        if self.later_stages and (self.format != "torchscript" or self.optimized is not None):
            raise ValueError(f"{self.file}: stages must be plain torchscript")
        if len(set(self.files)) != len(self.files):
            raise ValueError(f"{self.file}: each stage needs its own file")
        return self

    @property
    def files(self) -> tuple[FileName, ...]:
        """All its files, in the order in which they run."""
        return (self.file, *self.later_stages)


class LeftOut(Part):
    """A variant that is not in the artifact, and why."""

    variant: Name
    reason: str


class Manifest(Part):
    """The whole contract of one version of one model."""

    schema_version: Literal[2]
    model: Name
    version: int = Field(ge=1)
    description: str
    inputs: tuple[TensorSpec, ...] = Field(min_length=1)
    outputs: tuple[TensorSpec, ...] = Field(min_length=1)
    codec: CodecSpec
    golden: tuple[GoldenExample, ...] = Field(min_length=1)
    example: JsonValue = Field(
        description="one item as a client sends it in JSON; null: too large to show"
    )
    variants: dict[Name, Variant] = Field(min_length=1)
    left_out: tuple[LeftOut, ...] = ()
    plan: Plan | None = Field(default=None, description="None: the first variant, at every size")
    files: dict[FileName, FileDigest]
    accuracy: float | None = Field(default=None, ge=0, le=1)
    created_at: dt.datetime
    git_commit: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for kind, specs in (("input", self.inputs), ("output", self.outputs)):
            names = [spec.name for spec in specs]
            if len(set(names)) != len(names):
                raise ValueError(f"{kind} names must differ, got {names}")
        check_same_bounds(self.inputs)
        check_padding(self.inputs, self.outputs)
        check_rows(self.inputs, self.outputs, self.codec.ranked_by, self.codec.classes)
        if own := {MANIFEST_FILE, DIGEST_FILE, SIGNATURE_FILE} & set(self.files):
            raise ValueError(
                f"{', '.join(sorted(own))} cannot have a digest in the manifest itself"
            )
        for name, variant in self.variants.items():
            for file in variant.files:
                if file not in self.files:
                    raise ValueError(f"variant {name!r} names {file!r}, which has no digest")
        if self.plan is not None:
            _check_plan(self.plan, self.variants)
        for index, example in enumerate(self.golden):
            _check_arrays(f"golden[{index}].inputs", self.inputs, example.inputs)
            _check_arrays(f"golden[{index}].outputs", self.outputs, example.outputs)
        return self

    @model_validator(mode="after")
    def _codec_fits(self) -> Self:
        _check_labels(self.codec, self.outputs[0])
        if self.codec.scores == "softmax" and not self.outputs[0].item_shape:
            raise ValueError("a softmax needs a first output with an axis besides the batch")
        return self

    @model_validator(mode="after")
    def _inputs_are_the_codecs(self) -> Self:
        if isinstance(self.codec, TextCodecSpec):
            _check_text(self.codec, self.inputs, self.files)
        if isinstance(self.codec, ImageCodecSpec):
            how, first = self.codec.preprocess, self.inputs[0]
            made = (how.channels, how.height, how.width)
            if len(self.inputs) != 1 or first.dtype != "float32" or not first.accepts(made):
                raise ValueError(f"pictures need one input, float32 of shape {[-1, *made]}")
        return self

    @model_validator(mode="after")
    def _top_k_is_of_scores(self) -> Self:
        if self.codec.top_k is not None and not self.codec.has_scores(self.outputs[0]):
            raise ValueError(
                "top_k needs labels, or scores by softmax or sigmoid, and a first output with one "
                f"axis besides the batch; or ranked_by; got shape {list(self.outputs[0].shape)}"
            )
        return self

    def public(self) -> dict[str, JsonValue]:
        """The part that a client may see: without golden data and digests."""
        return self.model_dump(mode="json", exclude={"golden", "files"})


def forms_of(variants: Mapping[str, Variant]) -> dict[Form, Variant]:
    """Every proved form, in the order of the variants, plain before optimized."""
    forms = {}
    for name, variant in variants.items():
        forms[Form(variant=name)] = variant
        if variant.optimized is not None:
            forms[Form(variant=name, optimized=True)] = variant
    return forms


def may_mix(variants: Iterable[Variant]) -> bool:
    """Whether forms of these variants, all of one precision, may be mixed."""
    return all(variant.precision == "float32" or variant.interchangeable for variant in variants)


def _check_labels(codec: CodecPart, first: TensorSpec) -> None:
    labels = codec.score_labels
    if labels is None:
        return
    of_tokens = isinstance(codec, TextCodecSpec) and codec.of_tokens
    wanted = (-1, *(-1,) * of_tokens, len(labels))
    if first.shape != wanted:
        raise ValueError(
            f"{len(labels)} labels need a first output of shape {list(wanted)}, got "
            f"{list(first.shape)}"
        )


def _check_text(
    codec: TextCodecSpec, inputs: Iterable[TensorSpec], files: Mapping[FileName, FileDigest]
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


def _check_plan(plan: Plan, variants: Mapping[str, Variant]) -> None:
    if plan.precision not in {variant.precision for variant in variants.values()}:
        raise ValueError(f"the plan asks for {plan.precision}, which no variant has")
    for device in plan.devices:
        for precision, steps in device.steps.items():
            for form in (step.form for step in steps):
                _check_form(form, precision, variants)


def _check_form(form: Form, precision: Precision, variants: Mapping[str, Variant]) -> None:
    variant = variants.get(form.variant)
    if variant is None:
        raise ValueError(f"the plan names {form.variant!r}, which is not a variant")
    if variant.precision != precision:
        raise ValueError(f"the plan of {precision} names {form.variant!r}: {variant.precision}")
    if form.optimized and variant.optimized is None:
        raise ValueError(
            f"the plan optimizes {form.variant!r}, whose optimized form was not proved"
        )


def _check_arrays(
    where: str, specs: tuple[TensorSpec, ...], arrays: Mapping[str, EncodedArray]
) -> None:
    if set(arrays) != {spec.name for spec in specs}:
        raise ValueError(f"{where} must have {[spec.name for spec in specs]}, got {sorted(arrays)}")
    for spec in specs:
        array = arrays[spec.name]
        if array.dtype != spec.dtype or not spec.accepts(array.shape):
            raise ValueError(
                f"{where}[{spec.name!r}] is {array.dtype}{list(array.shape)}, "
                f"but the manifest says {spec.dtype}{list(spec.item_shape)}"
            )
        array.array()  # bytes fill the shape
