"""Specs of arrays: shapes, exact encoding, and tolerances."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, StringConstraints, field_validator, model_validator

from models.parts import Part, is_empty
from models.pictured import PictureOutput, layout

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]
Dtype = Literal["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
MAX_SIZE = 2**31 - 1  # of one axis
NUMBERS_AND_NULL = {int, float, type(None)}
FREE_MOST = 1024  # default for a free axis of an input


class Dimension(Part):
    """A free axis: its name, and its possible sizes in an item.

    Axes with the same name have the same size in an item, in all of its inputs. With a `mask` items
    of different sizes may share a batch: they are padded along the axis, and the input with the
    mask's name is 1 where an item has data and 0 where it is padded. An output's axis with the name
    of a padded one has the item's size: its padding is cut off.
    """

    name: Name | None = None
    least: int = Field(default=0, ge=0, le=MAX_SIZE)
    most: int = Field(default=FREE_MOST, ge=1, le=MAX_SIZE)
    mask: Name | None = Field(
        default=None, description="the input that is 1 for data and 0 for padding; null: no padding"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"sizes of {self.least} to {self.most}: the range is empty")
        if self.mask is not None and self.name is None:
            raise ValueError(f"a free axis with the mask {self.mask!r} needs a name")
        return self


ANY_SIZE = Dimension()


class Axis(NamedTuple):
    """An axis of an item: its name, if it has one, and its smallest and largest size."""

    name: str | None
    least: int
    most: int


class TensorSpec(Part):
    """An input or output: axis 0 is the batch, -1 a free axis.

    Attributes:
        dimensions: name and bounds of the free axes, in order; empty: unknown.
        minimum: for an input of integers: the smallest number that the model accepts; None: any.
        maximum: for an input of integers: the largest.
        below: for an input of integers: the name of a free axis; the numbers of an item are less
            than its size in the item, like those of an index. None: no such limit.
        fill: for an input: the number in padded places.
        nan: for an input of floats: whether NaN, a missing value, is one of its numbers.
        count: for an output: the output with the number of its valid rows, along the first axis of
            an item; the others are filler. None: all are valid.
        picture: for an output: how answers show it as a PNG file; None: it is no picture.
    """

    name: Name
    dtype: Dtype
    shape: tuple[int, ...]
    dimensions: tuple[Dimension, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    below: Name | None = None
    fill: int = 0
    nan: bool = Field(default=False, exclude_if=is_empty)
    count: Name | None = None
    picture: PictureOutput | None = Field(default=None, exclude_if=is_empty)

    @model_validator(mode="before")
    @classmethod
    def _without_free_max(cls, data: Any) -> Any:
        """Read an older manifest, which has one largest size for all free axes."""
        if not isinstance(data, Mapping) or not isinstance(data.get("free_max"), int):
            return data
        fields = {name: value for name, value in data.items() if name != "free_max"}
        shape = fields.get("shape")
        if data["free_max"] != FREE_MOST and isinstance(shape, list | tuple):
            free = list(shape[1:]).count(-1)
            fields.setdefault("dimensions", ({"most": data["free_max"]},) * free)
        return fields

    @field_validator("shape")
    @classmethod
    def _batch_first(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        if not shape or shape[0] != -1:
            raise ValueError(f"axis 0 is the batch and must be -1, got shape {list(shape)}")
        if any(size != -1 and size < 1 for size in shape):
            raise ValueError(f"sizes must be positive, or -1 if free, got shape {list(shape)}")
        return shape

    @model_validator(mode="after")
    def _one_dimension_per_free_axis(self) -> Self:
        free = self.item_shape.count(-1)
        if self.dimensions and len(self.dimensions) != free:
            raise ValueError(
                f"{self.name!r}: {len(self.dimensions)} dimensions for {free} free axes of shape "
                f"{list(self.shape)}"
            )
        return self

    @model_validator(mode="after")
    def _is_a_picture(self) -> Self:
        if self.picture is not None:
            try:
                layout(self.picture, self.dtype, self.item_shape)
            except ValueError as error:
                raise ValueError(f"{self.name!r}: {error}") from error
            if self.count is not None:
                raise ValueError(f"{self.name!r}: counted rows are no picture")
        return self

    @model_validator(mode="after")
    def _missing_floats(self) -> Self:
        if self.nan and np.dtype(self.dtype).kind != "f":
            raise ValueError(f"{self.name!r}: only floats can be NaN, not {self.dtype}")
        return self

    @model_validator(mode="after")
    def _range_of_integers(self) -> Self:
        if self.minimum is None and self.maximum is None and self.below is None:
            return self
        if self.maximum is not None and self.below is not None:
            raise ValueError(
                f"{self.name!r}: the range ends at {self.maximum} or at the size {self.below!r}, "
                "not at both"
            )
        if np.dtype(self.dtype).kind not in "iu":
            raise ValueError(f"{self.name!r}: only integers have a range, not {self.dtype}")
        whole = np.iinfo(self.dtype)
        least = whole.min if self.minimum is None else self.minimum
        most = whole.max if self.maximum is None else self.maximum
        if not whole.min <= least <= most <= whole.max:
            raise ValueError(
                f"{self.name!r}: the range {least}..{most} is empty, or outside of {self.dtype}, "
                f"which is {whole.min}..{whole.max}"
            )
        return self

    def __str__(self) -> str:
        """Format for `adopt --input`, for example `ids=int64[-1,1<=seq<=512] in 0..49`."""
        sizes = ["-1", *map(_size_text, self.item_shape, self.axes)]
        range_ = "" if self.range == ".." else f" in {self.range}"
        nan = " or nan" if self.nan else ""
        return f"{self.name}={self.dtype}[{','.join(sizes)}]{range_}{nan}"

    @property
    def range(self) -> str:
        """The range of an input's integers, such as `0..49`, `0..` or `0..<n`."""
        low, high = ("" if each is None else str(each) for each in (self.minimum, self.maximum))
        return f"{low}..{high}" if self.below is None else f"{low}..<{self.below}"

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of one item, without the batch axis."""
        return self.shape[1:]

    @property
    def is_fixed(self) -> bool:
        """Whether an item has no free axis."""
        return -1 not in self.item_shape

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of an item, with their bounds."""
        free = iter(self.dimensions)
        return tuple(
            _axis(next(free, ANY_SIZE)) if size == -1 else Axis(None, size, size)
            for size in self.item_shape
        )

    @property
    def item_bytes(self) -> int:
        """The bytes of one item with a fixed shape.

        Raises:
            ValueError: if the shape has a free axis.
        """
        if not self.is_fixed:
            raise ValueError(f"{self.name!r} has free dimensions: {list(self.shape)}")
        return math.prod(self.item_shape) * np.dtype(self.dtype).itemsize

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an item of this shape (without the batch axis) fits."""
        item_shape = self.item_shape
        return len(shape) == len(item_shape) and all(
            size in (-1, actual) for size, actual in zip(item_shape, shape, strict=True)
        )

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether an item of this shape fits and its free axes are within their bounds."""
        return shape == self.shape[1:] or fits(self.axes, shape)


def fits(axes: Sequence[Axis], shape: tuple[int, ...]) -> bool:
    """Whether an item of this shape has these axes; ignores names."""
    return len(shape) == len(axes) and all(
        axis.least <= size <= axis.most for axis, size in zip(axes, shape, strict=True)
    )


def _axis(dimension: Dimension) -> Axis:
    return Axis(dimension.name, dimension.least, dimension.most)


def _size_text(size: int, axis: Axis) -> str:
    if size != -1 or axis == _axis(ANY_SIZE):
        return str(size)
    least = f"{axis.least}<=" if axis.least else ""
    return f"{least}{axis.name or -1}<={axis.most}"


class EncodedArray(Part):
    """An exactly encoded array: little-endian, row-major bytes in base64."""

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
        nbytes = math.prod(self.shape) * dtype.itemsize
        if len(raw) != nbytes:
            raise ValueError(f"golden data has {len(raw)} bytes, its shape needs {nbytes}")
        array = np.frombuffer(raw, dtype=dtype).astype(np.dtype(self.dtype)).reshape(self.shape)
        array.setflags(write=False)
        return array


class Tolerance(Part):
    """Allowed distance of one item's output from the expected one, element by element.

    |actual - expected| <= absolute + relative * |expected| + of_range * max |expected|, where the
    maximum is over the elements of the item's output: the error of a lossy precision is a share of
    the largest values that it adds up, even if their sum is small.
    """

    absolute: float = Field(ge=0)
    relative: float = Field(ge=0)
    of_range: float = Field(default=0, ge=0)
    exact_integers: bool = Field(
        default=True,
        description="integer and boolean outputs must be equal, except for `integer_share`; if "
        "false they are not compared: a lossy precision may change an index of two near-equal "
        "scores, so accuracy decides",
    )
    integer_share: float = Field(
        default=0,
        ge=0,
        le=1,
        description="the share of an output's integers or booleans in an item that may differ: "
        "where scores tie, rounding decides which index is the largest",
    )

    def __str__(self) -> str:
        in_range = f" + {self.of_range:g} * max |value|" if self.of_range else ""
        return f"{self.absolute:g} + {self.relative:g} * |value|{in_range}"

    def excess(self, expected: Array, actual: Array) -> str | None:
        """Describe how an output of an item exceeds the tolerance; None: it does not."""
        if expected.shape != actual.shape:
            return f"shape {list(actual.shape)} instead of {list(expected.shape)}"
        if expected.dtype.kind != "f":
            differ = int(np.sum(expected != actual)) if self.exact_integers else 0
            most = int(self.integer_share * expected.size)
            if differ <= most:
                return None
            allowance = f", of which {most} may differ" if most else ""
            return f"differs in {differ} of {expected.size} values{allowance}"
        wide_expected, wide_actual = expected.astype(np.float64), actual.astype(np.float64)
        size = np.abs(wide_expected)
        largest = float(np.max(size, initial=0, where=np.isfinite(size)))
        absolute = self.absolute + self.of_range * largest
        if np.allclose(wide_actual, wide_expected, self.relative, absolute, equal_nan=True):
            return None
        with np.errstate(invalid="ignore"):  # infinity minus infinity: the worst is then "nan"
            worst = float(np.max(np.abs(wide_actual - wide_expected)))
        return f"differs by up to {worst:.3g} (allowed: {self})"


def null_as_nan(array: Array) -> Array:
    """Convert an array of numbers and None, which become NaN, to float64; others are unchanged."""
    if array.dtype.kind != "O" or not set(map(type, array.reshape(-1))) <= NUMBERS_AND_NULL:
        return array
    try:
        return array.astype(np.float64)
    except OverflowError:
        return array


def stack(items: Sequence[Arrays]) -> Arrays:
    """Batch items of one shape: input name -> array with a new batch axis in front."""
    return {name: np.stack([item[name] for item in items]) for name in items[0]}


def unstack(batch: Arrays) -> list[Arrays]:
    """Return the items of a batch, the inverse of `stack`."""
    size = len(next(iter(batch.values())))
    return [{name: array[row] for name, array in batch.items()} for row in range(size)]


def tile(array: Array, shape: Sequence[int]) -> Array:
    """Repeat or cut an array along each axis to this shape."""
    for axis, size in enumerate(shape):
        array = np.take(array, np.arange(size) % max(1, array.shape[axis]), axis=axis)
    return array
