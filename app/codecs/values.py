"""Conversion of an item's numbers to the manifest's dtype, and checks of their limits."""

from __future__ import annotations

import numpy as np

from app.codecs.base import at_index
from app.codecs.numbers import is_finite
from app.errors import CallerError, Detail, InvalidInput
from app.types import Array
from models.bounds import out_of_range
from models.tensors import Axis, TensorSpec

MAX_SHOWN = 60  # characters of a client's text in an error
INEXACT = 2**53  # from here on a float may differ from the whole number that was written


def short(text: str) -> str:
    """A client's text for messages, quoted and shortened."""
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")


def wanted(spec: TensorSpec) -> str:
    """Description of an input's items, for messages."""
    sizes = map(_wanted_size, spec.item_shape, spec.axes)
    return f"{spec.dtype} of shape [{', '.join(sizes)}]"


def _wanted_size(size: int, axis: Axis) -> str:
    if size != -1:
        return str(size)
    return f"{axis.name} " * (axis.name is not None) + f"{axis.least}..{axis.most}"


def misshapen(spec: TensorSpec, shape: tuple[int, ...]) -> CallerError:
    """The error for an item of this shape; `details` has the sizes that are too small or too large.

    Details cover only free axes, and only if the number of axes is right.
    """
    details: list[Detail] = []
    if spec.accepts(shape):
        for got, axis in zip(shape, spec.axes, strict=True):
            limit = min(max(got, axis.least), axis.most)
            if got != limit:
                details.append({"input": spec.name, "got": got, "limit": limit})
    got_shape = f"shape {list(shape)}" if shape else "a single number"
    return InvalidInput(f"{spec.name!r}: expected {wanted(spec)}, got {got_shape}", details)


def not_all(spec: TensorSpec) -> CallerError:
    """The error for values that have the wrong kind for the input."""
    kind = "true, false, 0 or 1" if spec.dtype == "bool" else "numbers (or some too large)"
    return InvalidInput(
        f"{spec.name!r}: expected {wanted(spec)}, got values that are not all {kind}"
    )


def convert(spec: TensorSpec, array: Array) -> Array:
    """Convert to the manifest's dtype, rejecting changes of a number beyond rounding."""
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        if array.dtype.kind != "b" and not _are_0_or_1(array):
            raise not_all(spec)
    elif array.dtype.kind not in "iuf":
        raise not_all(spec)
    with np.errstate(over="ignore", invalid="ignore"):
        converted = np.ascontiguousarray(array, dtype=dtype).reshape(array.shape)
    if dtype.kind in "iu" and not np.array_equal(converted, array):
        raise InvalidInput(f"{spec.name!r}: expected whole numbers in the range of {spec.dtype}")
    if dtype.kind in "iu" and array.dtype.kind == "f" and (abs(array) >= INEXACT).any():
        raise InvalidInput(
            f"{spec.name!r}: whole numbers of 2**53 and more are exact only if all are written as "
            f"integers, but one here has a decimal point or an exponent, or is out of the range of "
            f"{spec.dtype}"
        )
    return converted


def _are_0_or_1(array: Array) -> bool:
    return array.dtype.kind in "iuf" and bool(((array == 0) | (array == 1)).all())


def check_values(spec: TensorSpec, array: Array, *, many: bool = False) -> None:
    """Check that floats are finite, bools are 0 or 1, and integers are in the input's range.

    An input with missing values may have NaN.

    Args:
        spec: the input.
        array: values in its dtype.
        many: whether axis 0 counts items; the error has the index of the first invalid one.

    Raises:
        InvalidInput: with the value and its limit.
    """
    if array.dtype.kind == "f":
        if not is_finite(array):
            wrong = np.isinf(array) if spec.nan else ~np.isfinite(array)
            if wrong.any():
                nan = "" if spec.nan else "NaN, "
                problem = f"{nan}infinity, or a number too large for {spec.dtype}"
                raise _wrong(spec, problem, _first(wrong), many)
    elif array.dtype.kind == "b":
        octets = array.view(np.uint8)
        if octets.max(initial=0) > 1:
            place = _first(octets > 1)
            problem = f"a bool must be a byte of 0 or 1, got {octets[place]}"
            raise _wrong(spec, problem, place, many, got=int(octets[place]), limit=1)
    elif out_of_range(spec, array) is not None:
        raise _out_of_range(spec, array, many)


def check_below(spec: TensorSpec, array: Array, size: int, *, many: bool = False) -> None:
    """Check that numbers are less than the size of an axis, as `spec.below` demands.

    Args:
        spec: the input.
        array: values in its dtype.
        size: of the axis in these items.
        many: as for `check_values`.

    Raises:
        InvalidInput: with the value and its limit.
    """
    if array.size and int(array.max()) >= size:
        place = _first(array >= size)
        got = int(array[place])
        told = f"{spec.range}, where {spec.below} is {size}"
        problem = f"expected whole numbers in {told}, got {got}"
        raise _wrong(spec, problem, place, many, got=got, limit=size - 1)


def _out_of_range(spec: TensorSpec, array: Array, many: bool) -> CallerError:
    whole = np.iinfo(spec.dtype)
    least = whole.min if spec.minimum is None else spec.minimum
    most = whole.max if spec.maximum is None else spec.maximum
    place = _first((array < least) | (array > most))
    got = int(array[place])
    problem = f"expected whole numbers in {spec.range}, got {got}"
    return _wrong(spec, problem, place, many, got=got, limit=least if got < least else most)


def _first(wrong: Array) -> tuple[int, ...]:
    return tuple(np.argwhere(wrong)[0].tolist())


def _wrong(
    spec: TensorSpec, problem: str, place: tuple[int, ...], many: bool, **numbers: int
) -> CallerError:
    """The error for a value; with `many`, its place starts with its item's index."""
    axes = list(place[many:])
    at = f" at {axes}" if axes else ""
    error = InvalidInput(f"{spec.name!r}: {problem}{at}", [{"input": spec.name, **numbers}])
    return at_index(place[0], error) if many else error
