"""Arrays on their way: what shape they have, how they are kept exactly, how far they may differ."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]
Dtype = Literal["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
MAX_SIZE = 2**31 - 1  # of one axis


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


class EncodedArray(Part):
    """An array kept exactly: little-endian, row-major bytes in base64."""

    dtype: Dtype
    shape: tuple[Annotated[int, Field(ge=0, le=MAX_SIZE)], ...]
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


class Tolerance(Part):
    """Allowed distance of one item's output from the expected one, element by element.

    |got - expected| <= absolute + relative * |expected| + of_range * max |expected|, where the
    maximum is over the elements of the item's output: a lossy precision errs by a share of the
    largest values that it adds up, also where their sum is small.
    """

    absolute: float = Field(ge=0)
    relative: float = Field(ge=0)
    of_range: float = Field(default=0, ge=0)
    exact_integers: bool = Field(
        default=True,
        description="integer and boolean outputs must be equal; if false they are not compared: "
        "where a lossy precision makes an index of two near-equal scores, accuracy judges",
    )

    def __str__(self) -> str:
        in_range = f" + {self.of_range:g} * max |value|" if self.of_range else ""
        return f"{self.absolute:g} + {self.relative:g} * |value|{in_range}"

    def excess(self, expected: Array, got: Array) -> str | None:
        """Say how `got` breaks the tolerance, or None where it keeps it.

        Args:
            expected: one item's output, without the batch axis.
            got: what was answered instead.
        """
        if expected.shape != got.shape:
            return f"shape {list(got.shape)} instead of {list(expected.shape)}"
        if expected.dtype.kind != "f":
            same = not self.exact_integers or np.array_equal(expected, got)
            return None if same else f"differs in {int(np.sum(expected != got))} values"
        wide_expected, wide_got = expected.astype(np.float64), got.astype(np.float64)
        size = np.abs(wide_expected)
        largest = float(np.max(size, initial=0, where=np.isfinite(size)))
        absolute = self.absolute + self.of_range * largest
        if np.allclose(wide_got, wide_expected, self.relative, absolute, equal_nan=True):
            return None
        with np.errstate(invalid="ignore"):  # infinity less infinity: the worst is then "nan"
            worst = float(np.max(np.abs(wide_got - wide_expected)))
        return f"differs by up to {worst:.3g} (allowed: {self})"


def stack(items: Sequence[Arrays]) -> Arrays:
    """Items of one shape as a batch: input name -> array with a new batch axis in front."""
    return {name: np.stack([item[name] for item in items]) for name in items[0]}
