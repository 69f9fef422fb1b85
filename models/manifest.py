"""The contract between export and app: everything a server may know about a model.

The manifest travels inside the artifact as `manifest.json`. A serving process trusts nothing else:
it never imports the Python class that the model was made from.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    field_validator,
    model_validator,
)

SCHEMA_VERSION: Literal[1] = 1
MANIFEST_FILE = "manifest.json"
DIGEST_FILE = "manifest.sha256"

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]
Dtype = Literal["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Polarity = Literal["light-on-dark", "dark-on-light", "auto"]
Scores = Literal["softmax", "sigmoid", "none"]


class Part(BaseModel):
    """Base of every part: immutable, strict about names; JSON cannot carry NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TensorSpec(Part):
    """Name, dtype and shape of an input or output; axis 0 is the batch, -1 a free dimension."""

    name: Name
    dtype: Dtype
    shape: tuple[int, ...]
    free_max: int = Field(default=1024, ge=1, description="largest free dimension of an input")

    @field_validator("shape")
    @classmethod
    def _batch_first(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        if not shape or shape[0] != -1:
            raise ValueError(f"axis 0 is the batch and must be -1, got shape {list(shape)}")
        if any(size != -1 and size < 1 for size in shape):
            raise ValueError(f"sizes are positive, or -1 where free, got shape {list(shape)}")
        return shape

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of one item: without the batch axis."""
        return self.shape[1:]

    @property
    def is_fixed(self) -> bool:
        """Whether an item has no free dimension."""
        return -1 not in self.item_shape

    @property
    def item_bytes(self) -> int:
        """Bytes of one item of a fixed shape.

        Raises:
            ValueError: if the shape has a free dimension.
        """
        if not self.is_fixed:
            raise ValueError(f"{self.name!r} has free dimensions: {list(self.shape)}")
        return math.prod(self.item_shape) * np.dtype(self.dtype).itemsize

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an item of this shape (without the batch axis) fits."""
        wanted = self.item_shape
        return len(shape) == len(wanted) and all(
            want in (-1, got) for want, got in zip(wanted, shape, strict=True)
        )

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether an item of this shape fits and no free dimension is larger than it may be."""
        return self.accepts(shape) and all(
            want != -1 or got <= self.free_max
            for want, got in zip(self.item_shape, shape, strict=True)
        )


class PicturePreprocess(Part):
    """How a picture becomes an array [channels, height, width]; `models.preprocess` carries it out.

    The array is (value / 255 - mean) / std, per channel. Polarity says what the model was trained
    on and what to expect: `auto` looks at the border of the picture and turns dark-on-light into
    light-on-dark; the two fixed ones state what comes in and `dark-on-light` pictures are inverted.
    """

    width: int = Field(ge=1, le=4096)
    height: int = Field(ge=1, le=4096)
    channels: Literal[1, 3]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    polarity: Polarity = "light-on-dark"

    @model_validator(mode="after")
    def _one_number_per_channel(self) -> Self:
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise ValueError(f"mean and std need {self.channels} numbers, one per channel")
        if any(value <= 0 for value in self.std):
            raise ValueError("std must be positive")
        return self


class CodecPart(Part):
    """What every codec has: labels of the first output, and how it becomes scores.

    `scores` names the function that the codec applies to the first output before it answers:
    `softmax`, `sigmoid`, or `none` where the output is the score already.
    """

    labels: tuple[str, ...] | None = None
    scores: Scores = "none"


class TensorCodecSpec(CodecPart):
    """Items are tensors: nested or flat numbers, or raw bytes."""

    kind: Literal["tensor"] = "tensor"


class ImageCodecSpec(CodecPart):
    """Items are PNG or JPEG pictures; tensors that were preprocessed already are taken as well."""

    kind: Literal["image"] = "image"
    preprocess: PicturePreprocess


CodecSpec = Annotated[TensorCodecSpec | ImageCodecSpec, Field(discriminator="kind")]


class EncodedArray(Part):
    """An array kept exactly: little-endian, row-major bytes in base64."""

    dtype: Dtype
    shape: tuple[int, ...]
    data: str

    @classmethod
    def of(cls, array: Array) -> Self:
        """Encode an array of any shape."""
        little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        return cls(
            dtype=array.dtype.name,
            shape=array.shape,
            data=base64.b64encode(little.tobytes()).decode("ascii"),
        )

    def array(self) -> Array:
        """Decode; the array is read-only.

        Raises:
            ValueError: if the bytes do not fill the shape.
        """
        dtype = np.dtype(self.dtype).newbyteorder("<")
        try:
            raw = base64.b64decode(self.data, validate=True)
        except binascii.Error as error:
            raise ValueError(f"golden data is not base64: {error}") from error
        wanted = math.prod(self.shape) * dtype.itemsize
        if len(raw) != wanted:
            raise ValueError(f"golden data has {len(raw)} bytes, its shape needs {wanted}")
        array = np.frombuffer(raw, dtype=dtype).astype(np.dtype(self.dtype)).reshape(self.shape)
        array.setflags(write=False)
        return array


class GoldenExample(Part):
    """One item and what the eager model answers to it, both without the batch axis."""

    inputs: dict[str, EncodedArray]
    outputs: dict[str, EncodedArray]


class Tolerance(Part):
    """Allowed distance: |got - expected| <= absolute + relative * |expected|."""

    absolute: float = Field(ge=0)
    relative: float = Field(ge=0)

    def excess(self, expected: Array, got: Array) -> str | None:
        """Say how `got` breaks the tolerance, or None where it keeps it. Shapes must be equal."""
        if expected.shape != got.shape:
            return f"shape {list(got.shape)} instead of {list(expected.shape)}"
        if expected.dtype.kind not in "fiu":
            return None if np.array_equal(expected, got) else "values differ"
        wide_expected, wide_got = expected.astype(np.float64), got.astype(np.float64)
        if np.allclose(wide_got, wide_expected, self.relative, self.absolute, equal_nan=True):
            return None
        with np.errstate(invalid="ignore"):  # infinity less infinity: the worst is then "nan"
            worst = float(np.max(np.abs(wide_got - wide_expected)))
        allowed = f"{self.absolute:g} + {self.relative:g} * |value|"
        return f"differs by up to {worst:.3g} (allowed: {allowed})"


class Parity(Part):
    """The largest differences from eager that export measured, over all outputs and batch sizes."""

    max_absolute: float
    max_relative: float
    batch_sizes: tuple[int, ...]
    batch_invariance: float = Field(
        description="largest difference between an item's answer alone and inside a batch"
    )


class FileDigest(Part):
    """What a file of the artifact must be."""

    sha256: Sha256
    bytes: int = Field(ge=0)


class Variant(Part):
    """One executable form of the model."""

    file: FileName
    format: Literal["torchscript"]
    precision: Literal["float32"]
    made_by: str
    torch_version: str
    device_kinds: tuple[Literal["cpu", "cuda"], ...]
    tolerance: Tolerance
    parity: Parity
    accuracy: float | None = Field(default=None, ge=0, le=1)


class Manifest(Part):
    """The whole contract of one version of one model."""

    schema_version: Literal[1] = SCHEMA_VERSION
    model: Name
    version: int = Field(ge=1)
    description: str
    inputs: tuple[TensorSpec, ...] = Field(min_length=1)
    outputs: tuple[TensorSpec, ...] = Field(min_length=1)
    codec: CodecSpec
    golden: tuple[GoldenExample, ...] = Field(min_length=1)
    example: JsonValue = Field(description="one item as a client sends it in JSON")
    variants: dict[Name, Variant] = Field(min_length=1)
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
        for name, variant in self.variants.items():
            if variant.file not in self.files:
                raise ValueError(f"variant {name!r} names {variant.file!r}, which has no digest")
        for index, example in enumerate(self.golden):
            _check_arrays(f"golden[{index}].inputs", self.inputs, example.inputs)
            _check_arrays(f"golden[{index}].outputs", self.outputs, example.outputs)
        labels = self.codec.labels
        if labels is not None and self.outputs[0].item_shape != (len(labels),):
            raise ValueError(
                f"{len(labels)} labels need a first output of shape [-1, {len(labels)}], "
                f"got {list(self.outputs[0].shape)}"
            )
        if self.codec.scores == "softmax" and not self.outputs[0].item_shape:
            raise ValueError("a softmax needs a first output with an axis beside the batch")
        if isinstance(self.codec, ImageCodecSpec):
            how, first = self.codec.preprocess, self.inputs[0]
            made = (how.channels, how.height, how.width)
            if len(self.inputs) != 1 or first.dtype != "float32" or not first.accepts(made):
                raise ValueError(f"pictures need one input, float32 of shape {[-1, *made]}")
        return self

    def public(self) -> dict[str, JsonValue]:
        """The part that a client may see: without golden data and digests."""
        return self.model_dump(mode="json", exclude={"golden", "files"})


def _check_arrays(
    where: str, specs: tuple[TensorSpec, ...], arrays: Mapping[str, EncodedArray]
) -> None:
    if set(arrays) != {spec.name for spec in specs}:
        raise ValueError(f"{where} must hold {[spec.name for spec in specs]}, got {sorted(arrays)}")
    for spec in specs:
        array = arrays[spec.name]
        if array.dtype != spec.dtype or not spec.accepts(array.shape):
            raise ValueError(
                f"{where}[{spec.name!r}] is {array.dtype}{list(array.shape)}, "
                f"the manifest says {spec.dtype}{list(spec.item_shape)}"
            )
        array.array()  # bytes fill the shape
