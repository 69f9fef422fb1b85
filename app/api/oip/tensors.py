"""Conversion of an infer request's tensors to items: names, datatypes, sizes and bytes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from app.api.oip.requests import InferRequest, Tensor
from app.codecs.base import Budget, Codec, Files, at_index, check_count
from app.codecs.base64_files import decoded
from app.codecs.datatypes import BYTES, DATATYPES
from app.codecs.declared import DeclaredTensors
from app.codecs.elements import check_bytes, join_bytes, split_bytes
from app.codecs.sniffing import sniffed
from app.codecs.tensor import convert_numbers, kind
from app.codecs.values import check_values, misshapen, short, wanted
from app.errors import CallerError, InvalidInput
from app.types import Array, Item
from models.codec_specs import TextCodecSpec
from models.tensors import TensorSpec

MAX_SPARE_BYTES = 1024  # of a body that an item may keep alive in addition to its own bytes
LITTLE = sys.byteorder == "little"
BF16 = "BF16"  # the upper half of an FP32: no model has it, but its values are exact in FP32


def items_of(codec: Codec, tensors: Sequence[Tensor], max_items: int, budget: Budget) -> list[Item]:
    """The items of a request, in order.

    Args:
        codec: the model's.
        tensors: tensors as received.
        max_items: maximum number of items.
        budget: budget of the request's files.

    Raises:
        InvalidInput: with what was expected and what was sent.
        PayloadTooLarge: if there are more than `max_items`.
        TooLongForLoop: see `Budget`.
    """
    specs = codec.manifest.inputs
    how = codec.manifest.codec
    if isinstance(how, TextCodecSpec) and len(tensors) == 1 and tensors[0].datatype == BYTES:
        return _items_of_texts(codec, how, tensors[0], max_items, budget)
    given = {tensor.name: tensor for tensor in tensors}
    names = [spec.name for spec in specs]
    first = given.get(names[0])
    is_file = codec.files is not None and first is not None and first.datatype == BYTES
    if is_file:
        names = names[:1]  # a file is all that an item needs
    _check_names(tensors, given, names)
    _check_counts([given[name] for name in names], max_items)
    if is_file and codec.files is not None:
        return _items_of_files(codec, codec.files, given[names[0]], budget)
    return codec.decode_arrays(_arrays(specs, given))


def arrays_of(
    signature: DeclaredTensors, tensors: Sequence[Tensor], max_items: int
) -> dict[str, Array]:
    """The inputs of a handler, in order, each with all items; bytes as their octets.

    Args:
        signature: what it declares.
        tensors: tensors as received.
        max_items: maximum number of items.

    Raises:
        InvalidInput, PayloadTooLarge: see `items_of`.
    """
    given = {tensor.name: tensor for tensor in tensors}
    _check_names(tensors, given, [spec.name for spec in signature.inputs])
    _check_counts(tensors, max_items)
    arrays = _arrays(signature.inputs, given)
    for spec in signature.inputs:
        check_values(spec, arrays[spec.name], many=True)
    signature.shared_sizes.check(arrays, batch_axes=1)
    return arrays


def _check_names(tensors: Sequence[Tensor], given: Mapping[str, Tensor], names: list[str]) -> None:
    if len(given) != len(tensors) or set(given) != set(names):
        raise InvalidInput(
            f"expected exactly the inputs {names}, got "
            f"[{', '.join(short(tensor.name) for tensor in tensors[: len(names) + 1])}]"
        )


def _check_counts(tensors: Sequence[Tensor], max_items: int) -> None:
    counts = {tensor.name: tensor.shape[0] for tensor in tensors}
    count = tensors[0].shape[0]
    if any(each != count for each in counts.values()):
        raise InvalidInput(f"the first axis, which counts the items, differs: {counts}")
    if count < 1:
        raise InvalidInput("the first axis, which counts the items, is 0; send at least one")
    check_count(count, max_items)


def _arrays(specs: Sequence[TensorSpec], given: Mapping[str, Tensor]) -> dict[str, Array]:
    for spec in specs:
        shape = given[spec.name].shape
        if not spec.takes(shape[1:]):
            error = misshapen(spec, shape[1:])
            raise InvalidInput(
                f"{error} for each item; axis 0 of the shape {list(shape)} counts the items",
                error.details,
            )
    return {spec.name: _array(spec, given[spec.name]) for spec in specs}


class Layout(NamedTuple):
    """Where the bytes of a request's inputs are, checked against a model.

    Attributes:
        request: the request without its inputs, which would keep the whole body alive.
        nbytes: size of all inputs.
        parts: name, dtype, offset and shape of each input, in the manifest's order.
    """

    request: InferRequest
    nbytes: int
    parts: tuple[tuple[str, np.dtype[Any], int, tuple[int, ...]], ...]


def layout_of(codec: Codec, request: InferRequest) -> Layout | None:
    """The layout of a request that a model accepted; None if not all inputs are plain numbers."""
    begins: dict[str, int] = {}
    nbytes = 0
    for tensor in request.inputs:
        if not isinstance(tensor.data, memoryview):
            return None
        begins[tensor.name] = nbytes
        nbytes += len(tensor.data)
    shapes = {tensor.name: tensor.shape for tensor in request.inputs}
    datatypes = {tensor.name: tensor.datatype for tensor in request.inputs}
    parts = []
    for spec in codec.manifest.inputs:
        dtype = np.dtype(spec.dtype)
        if DATATYPES[spec.dtype] != datatypes.get(spec.name) or dtype.kind == "b" or not LITTLE:
            return None
        parts.append((spec.name, dtype, begins[spec.name], shapes[spec.name]))
    return Layout(request._replace(inputs=()), nbytes, tuple(parts))


def items_at(codec: Codec, layout: Layout, body: bytes, at: int) -> list[Item]:
    """The items of a body whose tensors begin at `at`, with the layout of an earlier body.

    Raises:
        InvalidInput: if a value is invalid.
    """
    arrays = {}
    octets = memoryview(body)
    for name, dtype, begin, shape in layout.parts:
        first = at + begin
        data = octets[first : first + math.prod(shape) * dtype.itemsize]
        arrays[name] = _numbers(data, dtype, len(body)).reshape(shape)
    return codec.decode_arrays(arrays)


def _array(spec: TensorSpec, tensor: Tensor) -> Array:
    """The values of an input, [n, *shape] of the manifest's dtype; the octets of BYTES."""
    datatype = DATATYPES[spec.dtype]
    widened = tensor.datatype == BF16 and datatype == "FP32"
    if tensor.datatype != datatype and not widened:
        raise InvalidInput(
            f"input {spec.name!r} has the datatype {short(tensor.datatype)}, the model expects "
            f"{datatype}"
        )
    data = tensor.data
    if datatype == BYTES:
        return np.frombuffer(_octets(tensor), np.uint8)
    if isinstance(data, memoryview):
        return _from_octets(spec, tensor, data, widened=widened)
    if widened:
        raise InvalidInput(f"input {spec.name!r}: BF16 must be sent as binary data, not in JSON")
    array = convert_numbers(spec, data) if isinstance(data, list) else data
    if array.shape != tensor.shape:
        if array.ndim != 1 or array.size != math.prod(tensor.shape):
            raise _differs(spec, tensor, f"data of shape {list(array.shape)}")
        array = array.reshape(tensor.shape)
    return array


def _from_octets(spec: TensorSpec, tensor: Tensor, data: memoryview, *, widened: bool) -> Array:
    dtype = np.dtype("<u2") if widened else np.dtype(spec.dtype).newbyteorder("<")
    if math.prod(tensor.shape) * dtype.itemsize != len(data):
        raise _differs(spec, tensor, f"{len(data)} bytes")
    if dtype.kind == "b":  # any byte except 0 is true: perf_analyzer sends random bytes
        return np.frombuffer(data, np.uint8).astype(np.bool_).reshape(tensor.shape)
    array = _numbers(data, dtype, len(cast(bytes, data.obj)))
    if widened:
        wide = array.astype(np.uint32)
        array = np.left_shift(wide, 16, out=wide).view(np.float32)
    elif not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    return array.reshape(tensor.shape)


def _octets(tensor: Tensor) -> memoryview | bytes:
    """The elements of BYTES, each after its length."""
    where, data = f"input {tensor.name!r}", tensor.data
    if isinstance(data, memoryview):
        check_bytes(where, data, math.prod(tensor.shape))
        return data
    return join_bytes([_element(where, each) for each in _flat(where, tensor, "elements")])


def _flat(where: str, tensor: Tensor, what: str) -> list[object]:
    """The elements of BYTES in JSON, which may be flat, or nested as the shape."""
    values: list[object] = [*tensor.data]
    for size in tensor.shape[1:] or (1,):  # clients also send elements of shape [n] as [n, 1]
        rows = [each for each in values if isinstance(each, list)]
        if len(rows) < len(values):
            break
        for row in rows:
            if len(row) != size:
                raise InvalidInput(
                    f"{where}: {len(row)} {what} in an item for the shape {list(tensor.shape)}"
                )
        values = [each for row in rows for each in row]
    if len(values) != math.prod(tensor.shape):
        raise InvalidInput(f"{where}: {len(values)} {what} for the shape {list(tensor.shape)}")
    return values


def _element(where: str, value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise InvalidInput(f"{where}: each element of BYTES is a string, got {kind(value)}")
    return value


def _numbers(data: memoryview, dtype: np.dtype[Any], body_bytes: int) -> Array:
    """A part of a body as an aligned array; a copy if it would keep a far larger body alive.

    The JSON before it may have any length. To copy, numpy would release the GIL and wait for it.
    """
    array = np.frombuffer(data, dtype)
    if array.flags.aligned and body_bytes <= 2 * array.nbytes + MAX_SPARE_BYTES:
        return array
    return np.frombuffer(bytes(data), dtype)


def _differs(spec: TensorSpec, tensor: Tensor, got: str) -> CallerError:
    return InvalidInput(
        f"input {spec.name!r} has the shape {list(tensor.shape)} and the datatype "
        f"{short(tensor.datatype)}, but {got}; the model expects {wanted(spec)} for each item"
    )


def _items_of_texts(
    codec: Codec, how: TextCodecSpec, tensor: Tensor, max_items: int, budget: Budget
) -> list[Item]:
    """One item from each text: BYTES [n] or [n, 1], of any name; from each pair of texts [n, 2]."""
    name, texts = f"input {short(tensor.name)}", 2 if how.pairs else 1
    count = tensor.shape[0]
    if math.prod(tensor.shape) != count * texts or count < 1 or len(tensor.shape) > 2:
        shape = "[n, 2], each a pair of texts" if how.pairs else "[n] or [n, 1], each a text"
        raise InvalidInput(
            f"{name}: BYTES for this model must have shape {shape}, got {list(tensor.shape)}"
        )
    check_count(count, max_items)
    elements = _elements(name, tensor, "texts", budget)
    items = []
    for index in range(count):
        try:
            of_item = [_text(each) for each in elements[index * texts : (index + 1) * texts]]
            items.append(codec.decode(of_item if how.pairs else of_item[0], budget))
        except InvalidInput as error:
            raise at_index(index, error) from error
    return items


def _elements(name: str, tensor: Tensor, what: str, budget: Budget) -> list[object]:
    """The elements of BYTES, of bytes or texts."""
    if not isinstance(tensor.data, memoryview):
        return _flat(name, tensor, what)
    budget.read(len(tensor.data))
    return [*split_bytes(name, tensor.data, math.prod(tensor.shape))]


def _text(element: object) -> str:
    if isinstance(element, bytes):
        try:
            return element.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"the text is not UTF-8: byte {element[error.start]:#04x} at {error.start}"
            ) from error
    if not isinstance(element, str):
        raise InvalidInput(f"expected a text, got {kind(element)}")
    return element


def _items_of_files(codec: Codec, files: Files, tensor: Tensor, budget: Budget) -> list[Item]:
    """One item from each file: BYTES [n], or [n, 1]."""
    name = f"input {tensor.name!r}"
    if math.prod(tensor.shape) != tensor.shape[0]:
        raise InvalidInput(
            f"{name}: BYTES for files must have shape [n] or [n, 1], each {files.called}, got "
            f"{list(tensor.shape)}"
        )
    given = _elements(name, tensor, "files", budget)
    return [_item_of_file(codec, files, index, each, budget) for index, each in enumerate(given)]


def _item_of_file(codec: Codec, files: Files, index: int, file: object, budget: Budget) -> Item:
    try:
        if isinstance(file, str):
            budget.read(len(file))
            try:
                file = decoded(file)
            except ValueError as error:
                raise InvalidInput(
                    f"a file in JSON must be {files.called} in base64; {error}"
                ) from error
        media_type = sniffed(file) if isinstance(file, bytes) else None
        if not isinstance(file, bytes) or media_type not in files.types:
            raise InvalidInput(f"it is not {files.called}")
        return codec.decode_raw(media_type, file, max_items=None, budget=budget)[0]
    except InvalidInput as error:
        raise at_index(index, error) from error
