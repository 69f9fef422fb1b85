"""The tensors that a handler declares, such as `inputs = {"x": "float32[-1,4]"}`."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torchlane.handlers.content import Content, InvalidInput
from torchlane.handlers.elements import encoded, packed, unpacked
from torchlane.handlers.frames import TO_HANDLER_BYTES

if TYPE_CHECKING:
    import numpy as np

NPZ = "application/x-npz"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
TEXT = re.compile(r"([a-z0-9]+)\[([-0-9, ]*)\]")
SIZE = re.compile(r" *(-1|[1-9][0-9]{0,8}) *")
# Kinds of numpy's dtypes that a dtype can have the values of.
KINDS = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}
BYTES = "bytes"  # texts, or other bytes of any length
DTYPES = frozenset(
    ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool", BYTES)
)
MAX_SHOWN = 8  # names in an error


class Tensor(NamedTuple):
    """A declared tensor; axis 0 is -1, and so is each other axis of any size."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class OutputsDiffer(Exception):
    """What a handler returned does not fit its `outputs`; the message is for its callers, too."""


def read_tensors(texts: Mapping[str, str], what: str) -> dict[str, Tensor]:
    """Read `inputs` or `outputs` of a class.

    Args:
        texts: by name.
        what: that is read, for messages.

    Raises:
        ValueError: if they are wrong.
    """
    if not isinstance(texts, Mapping):
        raise ValueError(f'{what} must be a dict such as {{"x": "float32[-1,4]"}}')
    return {name: _tensor(name, text, what) for name, text in texts.items()}


def _tensor(name: object, text: object, what: str) -> Tensor:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            f"{what} has the name {name!r:.80}; use letters, digits, - and _, 64 at most"
        )
    parts = TEXT.fullmatch(text) if isinstance(text, str) else None
    sizes = [SIZE.fullmatch(each) for each in parts[2].split(",")] if parts is not None else []
    shape = tuple(int(each[1]) for each in sizes if each is not None)
    if parts is None or parts[1] not in DTYPES or len(shape) < len(sizes) or shape[0] != -1:
        raise ValueError(
            f"{what}[{name!r}] is {text!r:.80}; write a dtype and sizes, such as "
            "'float32[-1,4]': the first one counts the items and is -1, others are -1 if any size "
            f"fits; the dtypes are {', '.join(sorted(DTYPES))}"
        )
    if parts[1] == BYTES and -1 in shape[1:]:
        raise ValueError(
            f"{what}[{name!r}] is {text!r:.80}; only the first size of bytes can be -1"
        )
    return Tensor(parts[1], shape)


def arrays_in(content: Content, inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a body, each of its declared dtype: an .npz file, or JSON with lists by name.

    Bytes are arrays of objects. A file has them as texts of numpy, or as octets.

    Raises:
        InvalidInput: the body is neither, or does not fit.
        ImportError: the handler's interpreter has no numpy.
    """
    import numpy as np  # noqa: PLC0415 # may be missing

    if content.media_type == NPZ:
        try:
            with np.load(io.BytesIO(content.body), allow_pickle=False) as file:
                size = sum(each.file_size for each in file.zip.infolist())
                if size > TO_HANDLER_BYTES:
                    raise ValueError(f"it unpacks to {size} bytes, at most {TO_HANDLER_BYTES}")
                values: Any = {name: _of_file(file[name], inputs.get(name)) for name in file}
        except Exception as error:  # of zipfile, zlib and numpy: a file that is damaged
            raise InvalidInput(f"the body is no .npz file: {str(error)[:200]}") from error
    else:
        values = content.json()
    try:
        return _fitted(values, inputs, "the body")
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
    return unpacked(array, tensor.shape)


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
    return arrays


def _array(name: str, value: Any, tensor: Tensor) -> np.ndarray[Any, Any]:
    import numpy as np  # noqa: PLC0415 # see above

    expected = f"{name!r}: expected {tensor}, got"
    is_bytes = tensor.dtype == BYTES
    try:
        array = encoded(value) if is_bytes else np.asarray(value)
    except Exception as error:  # of the object's own code; of numpy for lists of several lengths
        problem = "" if is_bytes else "what is no array: "
        raise ValueError(f"{expected} {problem}{str(error)[:200]}") from error
    if array.size == 0 and array.dtype == np.float64:  # an empty list has no dtype of its own
        array = array.astype(tensor.dtype)
    if not is_bytes and array.dtype.kind not in KINDS[np.dtype(tensor.dtype).kind]:
        raise ValueError(f"{expected} values of {array.dtype}")
    if len(array.shape) != len(tensor.shape) or any(
        size not in (-1, actual) for size, actual in zip(tensor.shape, array.shape, strict=True)
    ):
        raise ValueError(f"{expected} the shape {[*array.shape]}")
    if is_bytes:
        return array
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(array, tensor.dtype)
    if result.dtype.kind in "iu" and not np.array_equal(result, array):
        raise ValueError(f"{expected} numbers that are out of its range")
    return result
