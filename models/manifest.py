"""The contract between export and app: everything a server knows about a model.

The manifest is in the artifact as `manifest.json`. A server relies on nothing else: it never
imports the Python class of the model.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Literal, Self, TypeAlias

from pydantic import Field, JsonValue, model_validator

from models.bounds import check_below, check_same_bounds
from models.choices import Precision
from models.codec_specs import CodecSpec, ImageCodecSpec, TextCodecSpec, check_codec
from models.padding import check_padding
from models.parts import Part, is_empty
from models.places import with_free_masks
from models.plan import Form, Plan
from models.processor import DeviceKind
from models.rows import check_rows
from models.tensors import EncodedArray, FileName, Name, Sha256, TensorSpec, Tolerance

SCHEMA_VERSION: Literal[2] = 2
OperatorLibrary: TypeAlias = Literal["torchvision"]  # see models/runtimes/operators.py
Format: TypeAlias = Literal["torchscript", "aotinductor", "openvino", "onnx"]
MANIFEST_FILE = "manifest.json"
DIGEST_FILE = "manifest.sha256"
SIGNATURE_FILE = "manifest.sig"
# It is read into memory. Golden examples make it large: one of 3 x 224 x 224 numbers has 800 KB,
# one of a detector with 3 x 640 x 640 numbers and 25,200 x 85 outputs has 18 MB.
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
# From here on, memory matters more than the last tenth of the time: a model is served in one form,
# and not in one that holds its weights several times.
LARGE_BYTES = 512 << 20
# Parsing holds the GIL for about 2 us per value, and needs up to a kilobyte for each wrong one.
# Large manifests have some ten thousand values: 21,841 labels, or the curves of 1,000 epochs.
# A golden picture of 224 by 224 has 150,528, if it is written as a list; export writes base64.
MAX_MANIFEST_VALUES = 200_000
MAX_TOKENIZER_BYTES = 64 * 1024 * 1024  # the largest ones of published models have 35 MB


class GoldenExample(Part):
    """One item and the eager model's answer, both without the batch axis."""

    inputs: dict[str, EncodedArray]
    outputs: dict[str, EncodedArray]


class Difference(Part):
    """The largest differences of one output, over all comparisons."""

    max_absolute: float
    max_relative: float


class Parity(Part):
    """A form's distance from eager float32, measured by export over batch sizes and shapes."""

    outputs: dict[Name, Difference] = Field(min_length=1)
    batch_sizes: tuple[int, ...] = Field(min_length=1)
    batch_invariance: float = Field(
        description="largest difference between an item's answer alone and in a batch"
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
    """Requirements of compiled code, which would crash on machines that do not meet them."""

    architecture: str = Field(description="in the form of `uname -m`, for example x86_64")
    requires: tuple[str, ...] = Field(
        description="CPU flags as in /proc/cpuinfo; on CUDA the architecture, such as sm_90"
    )


class Variant(Part):
    """One file, or one for each stage, that runs the model.

    `optimized` is the parity of its form after `torch.jit.optimize_for_inference` at load; None: do
    not use that form. `native` is only for compiled code. `later_stages` are the files that run
    after `file`, each on the outputs of its predecessor; each may have its own device.
    """

    file: FileName
    later_stages: tuple[FileName, ...] = ()
    format: Format
    operators: tuple[OperatorLibrary, ...] = Field(
        default=(),
        exclude_if=is_empty,
        description="libraries with operators beyond torch's own that its files call",
    )
    precision: Precision
    made_by: str
    torch_version: str
    device_kinds: tuple[DeviceKind, ...] = Field(min_length=1)
    tolerance: Tolerance
    parity: Parity
    optimized: Parity | None = None
    accuracy: float | None = Field(
        default=None, ge=0, le=1, description="on held-out data; the lower one of its forms"
    )
    native: NativeCode | None = None
    interchangeable: bool = Field(
        default=True,
        description="whether the optimized form's answers equal the plain one's within float32's "
        "tolerance: only then may a plan mix the two",
    )
    reload_growth_bytes: int | None = Field(default=None, description="of older exports; not used")

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
        """All its files, in the order of execution."""
        return (self.file, *self.later_stages)


class OmittedVariant(Part):
    """A variant that is not in the artifact, and the reason."""

    variant: Name
    reason: str


class TrainedEpoch(Part):
    """The means of one epoch; None for NaN or infinity."""

    epoch: int = Field(ge=1)
    seconds: float = Field(ge=0)
    loss: float | None = None
    evaluation_loss: float | None = None
    metrics: dict[str, float | None] = Field(default_factory=dict)


class TrainingRun(Part):
    """The training run that the weights come from."""

    data: str
    git_commit: str | None
    hyperparameters: dict[str, JsonValue]
    kept: int = Field(ge=0, description="the epoch whose weights these are; 0: none was complete")
    epochs: tuple[TrainedEpoch, ...]
    peak_bytes: int = Field(default=0, description="highest memory of a process")


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
    real_inputs: str = Field(
        default="",
        exclude_if=is_empty,
        description="the real inputs that proofs used, in words; empty: made-up ones",
    )
    variants: dict[Name, Variant] = Field(min_length=1)
    left_out: tuple[OmittedVariant, ...] = ()
    plan: Plan | None = Field(default=None, description="None: the first variant, at every size")
    files: dict[FileName, FileDigest]
    accuracy: float | None = Field(default=None, ge=0, le=1)
    created_at: dt.datetime
    git_commit: str | None = None
    training: TrainingRun | None = Field(
        default=None, description="None: not trained by `torchlane train`"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for kind, specs in (("input", self.inputs), ("output", self.outputs)):
            names = [spec.name for spec in specs]
            if len(set(names)) != len(names):
                raise ValueError(f"{kind} names must differ, got {names}")
        if missing := [spec.name for spec in self.outputs if spec.nan]:
            raise ValueError(f"output {missing[0]!r} is declared as `nan`; only inputs can be")
        if pictures := [spec.name for spec in self.inputs if spec.picture is not None]:
            raise ValueError(f"input {pictures[0]!r} is declared as a picture; only outputs can be")
        if texts := [spec.name for spec in (*self.inputs, *self.outputs) if spec.dtype == "bytes"]:
            raise ValueError(f"{texts[0]!r} is declared as bytes; only tensors of handlers can be")
        check_same_bounds(self.inputs)
        check_below(self.inputs)
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
        check_codec(self.codec, self.inputs, self.outputs, self.files)
        if isinstance(self.codec, TextCodecSpec):
            name, size = self.codec.tokenizer, self.files[self.codec.tokenizer].bytes
            if size > MAX_TOKENIZER_BYTES:
                raise ValueError(f"{name} has {size:,} bytes; at most {MAX_TOKENIZER_BYTES:,} work")
        return self

    @property
    def shown_outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs as clients get them: masks may have the height and width of a picture."""
        masks = self.codec.masks if isinstance(self.codec, ImageCodecSpec) else ()
        return tuple(with_free_masks(self.outputs, masks))

    def may_mix(self, variants: Iterable[Variant]) -> bool:
        """Whether a plan may use several forms of these variants, all of one precision.

        Not if their answers differ by more than those of float32, and not if one is large, because
        each form has its own copy of the weights.
        """
        return all(
            (each.precision == "float32" or each.interchangeable) and not self.is_large(each)
            for each in variants
        )

    def is_large(self, variant: Variant) -> bool:
        """Whether the files of a variant are so large that a server needs one copy of them."""
        return sum(self.files[name].bytes for name in variant.files) > LARGE_BYTES

    def public(self) -> dict[str, JsonValue]:
        """Return the part for clients, without golden data, digests and the training run."""
        return self.model_dump(mode="json", exclude={"golden", "files", "training"})


def check_manifest_size(text: bytes) -> None:
    """Check that a manifest is small enough to be parsed.

    Raises:
        ValueError: if it is too large, with the size and the limit.
    """
    values = sum(text.count(mark) for mark in (b",", b":", b"[", b"{"))
    if len(text) > MAX_MANIFEST_BYTES:
        raise ValueError(f"has {len(text):,} bytes; at most {MAX_MANIFEST_BYTES:,} are read")
    if values > MAX_MANIFEST_VALUES:
        raise ValueError(f"has about {values:,} values; at most {MAX_MANIFEST_VALUES:,} are read")


def forms_of(variants: Mapping[str, Variant]) -> dict[Form, Variant]:
    """Return every verified form, in the order of the variants, plain before optimized."""
    forms = {}
    for name, variant in variants.items():
        forms[Form(variant=name)] = variant
        if variant.optimized is not None:
            forms[Form(variant=name, optimized=True)] = variant
    return forms


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
