"""The arrays of the tensors that a handler declares, in requests and in answers."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchlane.handlers.content import Content, InvalidInput
from torchlane.handlers.declarations import BYTES, Tensor
from torchlane.handlers.elements import encoded, packed, unpacked
from torchlane.handlers.frames import TO_HANDLER_BYTES

if TYPE_CHECKING:
    import numpy as np

NPZ = "application/x-npz"
# Kinds of numpy's dtypes that a dtype can have the values of.
KINDS = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}
MAX_SHOWN = 8  # names in an error
# A file may unpack to 32 times its size, or to a mebibyte, as one for a model may.
MAX_RATIO, FREE_BYTES = 32, 1 << 20


class OutputsDiffer(Exception):
    """What a handler returned does not fit its `outputs`; the message is for its callers, too."""


class OutOfBounds(ValueError):
    """A size or a number is beyond its limit.

    Args:
        message: for callers.
        name: of the tensor.
        got: the size or number.
        limit: that it is beyond.
    """

    def __init__(self, message: str, name: str, got: int, limit: int) -> None:
        super().__init__(message)
        detail: Mapping[str, str | int | float] = {"input": name, "got": int(got), "limit": limit}
        self.details = (detail,)


def arrays_in(content: Content, inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a body, each of its declared dtype: an .npz file, or JSON with lists by name.

    Bytes are arrays of objects. A file has them as texts of numpy, or as octets.

    Raises:
        InvalidInput: the body is neither, or does not fit.
        ImportError: the handler's interpreter has no numpy.
    """
    import numpy as np  # noqa: PLC0415 # may be missing

    if content.media_type.partition(";")[0].strip().lower() == NPZ:
        most = max(
            len(content.body), min(TO_HANDLER_BYTES, FREE_BYTES + MAX_RATIO * len(content.body))
        )
        try:
            with np.load(io.BytesIO(content.body), allow_pickle=False) as file:
                size = sum(each.file_size for each in file.zip.infolist())
                if size > most:
                    raise ValueError(f"it unpacks to {size} bytes, the limit is {most}")
                values: Any = {name: _of_file(file[name], inputs.get(name)) for name in file}
        except Exception as error:  # of zipfile, zlib and numpy: a file that is damaged
            raise InvalidInput(f"the body is no .npz file: {str(error)[:200]}") from error
    else:
        values = content.json()
    try:
        return _fitted(values, inputs, "the body")
    except OutOfBounds as error:
        raise InvalidInput(str(error), error.details) from error
    except ValueError as error:
        raise InvalidInput(str(error)) from error


def outputs_of(value: Any, outputs: Mapping[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """What a handler returned as arrays of its declared outputs, bytes as their octets.

    Raises:
        OutputsDiffer: it does not fit them.
        ImportError: the handler's interpreter has no numpy.
    """
    try:
        arrays = _fitted(value, outputs, "the handler's answer")
    except ValueError as error:
        raise OutputsDiffer(str(error)) from error
    return {
        name: packed(array) if outputs[name].dtype == BYTES else array
        for name, array in arrays.items()
    }


def _of_file(array: np.ndarray[Any, Any], tensor: Tensor | None) -> np.ndarray[Any, Any]:
    if tensor is None or tensor.dtype != BYTES or array.dtype != "uint8":
        return array
    return unpacked(array, tuple(axis.most for axis in tensor.axes))


def _fitted(
    values: Any, tensors: Mapping[str, Tensor], what: str
) -> dict[str, np.ndarray[Any, Any]]:
    names = ", ".join(map(repr, tensors))
    if not isinstance(values, Mapping):
        raise ValueError(
            f"{what} must have arrays or lists by name, {names}; it is of the type "
            f"{type(values).__name__}"
        )
    if values.keys() != tensors.keys():
        got = ", ".join(f"{each!r:.80}" for each in [*values][:MAX_SHOWN]) or "nothing"
        raise ValueError(f"{what} must have exactly {names}, got {got}")
    arrays = {name: _array(name, values[name], each) for name, each in tensors.items()}
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"the first axis, which counts the items, differs in {what}: {counts}")
    _check_together(arrays, tensors)
    return arrays


def _check_together(
    arrays: Mapping[str, np.ndarray[Any, Any]], tensors: Mapping[str, Tensor]
) -> None:
    """Check the sizes of axes with one name, and integers that are less than such a size."""
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        for axis, size in zip(tensor.axes, arrays[name].shape[1:], strict=True):
            if axis.name is not None and sizes.setdefault(axis.name, size) != size:
                other = sizes[axis.name]
                message = (
                    f"{name!r}: {axis.name!r} has size {size} here and {other} in another axis"
                )
                raise OutOfBounds(message, name, size, other)
    for name, tensor in tensors.items():
        array = arrays[name]
        if tensor.below is not None and array.size and array.max() >= sizes[tensor.below]:
            size, most = sizes[tensor.below], array.max()
            message = f"{name!r}: expected {tensor}, where {tensor.below} is {size}, got {most}"
            raise OutOfBounds(message, name, most, size - 1)


def _array(name: str, value: Any, tensor: Tensor) -> np.ndarray[Any, Any]:
    import numpy as np  # noqa: PLC0415 # see above

    expected = f"{name!r}: expected {tensor}, got"
    is_bytes = tensor.dtype == BYTES
    if not is_bytes and _has_text(value):
        raise ValueError(f"{expected} a text")
    try:
        array = encoded(value) if is_bytes else np.asarray(value)
    except Exception as error:  # of the object's own code; of numpy for lists of several lengths
        problem = "" if is_bytes else "what is no array: "
        raise ValueError(f"{expected} {problem}{str(error)[:200]}") from error
    if array.size == 0 and array.dtype == np.float64:  # an empty list has no dtype of its own
        array = array.astype(tensor.dtype)
    if not is_bytes and array.dtype.kind not in KINDS[np.dtype(tensor.dtype).kind]:
        raise ValueError(f"{expected} values of {array.dtype}")
    _check_shape(name, array.shape, tensor)
    if is_bytes:
        return array
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(array, tensor.dtype)
    if result.dtype.kind == "f" and not np.isfinite(result).all():
        raise ValueError(f"{expected} NaN, infinity or a number that is out of its range")
    if result.dtype.kind in "iu" and not np.array_equal(result, array):
        raise ValueError(f"{expected} numbers that are out of its range")
    if tensor.least is not None and result.min(initial=tensor.least) < tensor.least:
        raise OutOfBounds(f"{expected} {result.min()}", name, result.min(), tensor.least)
    if tensor.most is not None and result.max(initial=tensor.most) > tensor.most:
        raise OutOfBounds(f"{expected} {result.max()}", name, result.max(), tensor.most)
    return result


def _has_text(value: Any) -> bool:
    """Whether lists have a text: numpy would make all elements as wide as the longest text."""
    if isinstance(value, list | tuple):
        return any(map(_has_text, value))
    return isinstance(value, str | bytes)


def _check_shape(name: str, shape: tuple[int, ...], tensor: Tensor) -> None:
    message = f"{name!r}: expected {tensor}, got the shape {[*shape]}"
    if len(shape) != 1 + len(tensor.axes):
        raise ValueError(message)
    for axis, size in zip(tensor.axes, shape[1:], strict=True):
        limit = min(max(size, axis.least), axis.most)
        if size != limit:
            raise OutOfBounds(message, name, size, limit)
