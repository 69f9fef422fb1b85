"""Reading of an infer call's message, and writing of its answer."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from app.api.oip.answers import Output, octets_bytes, output_octets
from app.api.oip.grpc.protos import inference_pb2 as pb
from app.api.oip.grpc.wire import LENGTH, Field, Reader, malformed, varint
from app.api.oip.requests import (
    MAX_RANK,
    MAX_TENSORS,
    InferRequest,
    Parameters,
    Tensor,
    Wanted,
    checked_shape,
    classes_of,
    reject_shared_memory,
    timeout_of,
)
from app.codecs.base import Budget
from app.codecs.datatypes import BYTES, DTYPES
from app.codecs.values import short
from app.errors import InvalidInput, PayloadTooLarge
from app.types import ModelId

ENVELOPE_FIELDS = 2000  # names, shapes and parameters around the items
UNCOUNTED_BYTES = 4096  # protobuf makes at most 0.2 MB of objects of so few
# The messages below a ModelInferRequest, by the numbers of their fields; 0: numbers, each of which
# becomes eight bytes, however few it has in the message.
NUMBERS = 0
ENTRY: Mapping[int, Any] = {2: {}}  # of parameters
INPUT: Mapping[int, Any] = {3: NUMBERS, 4: ENTRY, 5: dict.fromkeys(range(1, 6), NUMBERS)}
REQUEST: Mapping[int, Any] = {4: ENTRY, 5: INPUT, 6: {2: ENTRY}}
RAW = 7
# The fields of InferTensorContents by datatype.
CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


class InferMessage:
    """A ModelInferRequest.

    Args:
        data: the message.
        max_items: maximum number of items.

    Attributes:
        id: of the request; empty if it has none.
        name: the model's name.
        parameters: of the request, once `request` was called.
        version: the model's version; empty for the version that serves requests without one.

    Raises:
        InvalidInput: if it is malformed.
        PayloadTooLarge: if it has more fields than any request needs.
    """

    __slots__ = ("_envelope", "_fields", "_raw", "_reader", "id", "name", "parameters", "version")

    def __init__(self, data: bytes, max_items: int) -> None:
        reader = self._reader = Reader(data, ENVELOPE_FIELDS + max_items)
        self.id = self.name = self.version = ""
        self.parameters: Parameters = {}
        self._fields: list[Field] = []
        self._raw: list[memoryview] = []
        view, pieces = memoryview(data), list[memoryview]()
        kept = before = 0  # where what is not yet in the pieces begins, and where this field does
        for field in reader.fields(0, len(data)):
            number, kind, begin, end = field
            if kind == LENGTH and number == RAW:
                self._raw.append(view[begin:end])
                pieces.append(view[kept:before])
                kept = end
            elif kind == LENGTH:
                self._fields.append(field)
                if number == 1:
                    self.name = reader.text(field)
                elif number == 2:
                    self.version = reader.text(field)
                elif number == 3:
                    self.id = reader.text(field)
            before = end
        self._envelope = b"".join((*pieces, view[kept:])) if kept else data

    def request(self, budget: Budget, max_bytes: int, max_elements: int = 0) -> InferRequest:
        """The content of the request.

        Args:
            budget: budget of the request's pictures.
            max_bytes: maximum size of numbers.
            max_elements: maximum number of elements of BYTES, beyond one for each item.

        Raises:
            InvalidInput: with what was expected and what was sent.
            PayloadTooLarge: if numbers would exceed `max_bytes`.
            TooLongForLoop: see `Budget`.
        """
        budget.read(len(self._envelope))
        self._reader.allow(max_elements)
        if len(self._envelope) > UNCOUNTED_BYTES:
            numbers = _count(self._reader, self._fields, REQUEST)
            if 8 * numbers > max_bytes:
                raise PayloadTooLarge(
                    f"{numbers} numbers count 8 bytes each, the limit is {max_bytes} bytes; "
                    "raw_input_contents takes as many bytes as the tensor has"
                )
        try:
            message = pb.ModelInferRequest.FromString(self._envelope)
        except DecodeError as error:
            raise malformed() from error
        inputs, outputs, raw = message.inputs, message.outputs, self._raw
        for what, count in (("inputs", len(inputs)), ("outputs", len(outputs))):
            if count > MAX_TENSORS:
                raise InvalidInput(f"{count} {what}; a request may have at most {MAX_TENSORS}")
        if not inputs:
            raise InvalidInput("'inputs' must have at least one tensor")
        if raw and len(raw) != len(inputs):
            raise InvalidInput(
                f"{len(raw)} raw_input_contents for {len(inputs)} inputs: send one for each input, "
                "or none"
            )
        tensors = tuple(
            _tensor(each, raw[index] if raw else None) for index, each in enumerate(inputs)
        )
        wanted = tuple(map(_output, outputs)) if outputs else None
        self.parameters = _parameters(message.parameters)
        timeout_s = timeout_of(self.parameters)
        return InferRequest(tensors, wanted, message.id, True, timeout_s)


def _count(reader: Reader, fields: Sequence[Field], parts: Mapping[int, Any]) -> int:
    """How many numbers of variable length the parts of a message have; counts their fields too."""
    count = 0
    for number, kind, begin, end in fields:
        part = parts.get(number) if kind == LENGTH else None
        if part == NUMBERS:
            octets = np.frombuffer(reader.data, np.uint8, end - begin, begin)
            count += int(np.count_nonzero(octets < 128))
        elif part is not None:
            count += _count(reader, reader.fields(begin, end), part)
    return count


def _tensor(given: pb.ModelInferRequest.InferInputTensor, raw: memoryview | None) -> Tensor:
    where = f"input {short(given.name)}"
    if not 0 < len(given.shape) <= MAX_RANK:
        raise InvalidInput(f"{where}: shape must have 1 to {MAX_RANK} sizes")
    shape = checked_shape(list(given.shape), where)
    reject_shared_memory(_parameters(given.parameters), where)
    has_contents = given.HasField("contents")
    if raw is None:
        if not has_contents:
            raise InvalidInput(f"{where} has no contents, and there are no raw_input_contents")
        return Tensor(given.name, given.datatype, shape, _contents(given, shape, where))
    if has_contents:
        raise InvalidInput(f"{where} has contents, but there are raw_input_contents too")
    return Tensor(given.name, given.datatype, shape, raw)


def _contents(
    given: pb.ModelInferRequest.InferInputTensor, shape: tuple[int, ...], where: str
) -> memoryview | list[object]:
    """Typed contents: elements of BYTES, or numbers as their bytes."""
    datatype = given.datatype
    name = CONTENTS.get(datatype)
    if name is None:
        raise InvalidInput(
            f"{where}: the datatype {short(datatype)} has no typed contents; send "
            "raw_input_contents"
        )
    if any(field.name != name for field, _ in given.contents.ListFields()):
        raise InvalidInput(f"{where}: its contents are not those of {datatype}")
    values = getattr(given.contents, name)
    if datatype == BYTES:
        return list(values)
    count = math.prod(shape)
    if len(values) != count:
        raise InvalidInput(f"{where}: expected {count} numbers, got {len(values)}")
    dtype = np.dtype(DTYPES.get(datatype) or datatype.lower())
    # The widest type of the kind: left to itself, numpy makes floats of large unsigned integers.
    numbers = np.array(values, {"i": np.int64, "u": np.uint64}.get(dtype.kind))
    if dtype.kind in "iu" and count:
        limits = np.iinfo(dtype)
        if numbers.min() < limits.min or numbers.max() > limits.max:
            raise InvalidInput(f"numbers are out of the range of {dtype.name}")
    return memoryview(numbers.astype(dtype.newbyteorder("<"), copy=False).tobytes())


def _output(given: pb.ModelInferRequest.InferRequestedOutputTensor) -> Wanted:
    where = f"output {short(given.name)}"
    parameters = _parameters(given.parameters)
    reject_shared_memory(parameters, where)
    return Wanted(given.name, True, classes_of(parameters, where))


def _parameters(given: Mapping[str, pb.InferParameter]) -> Parameters:
    if not given:
        return {}
    found: dict[str, object] = {}
    for key, value in given.items():
        choice = value.WhichOneof("parameter_choice")
        found[key] = None if choice is None else getattr(value, choice)
    return found


def response_parts(
    model: ModelId, request_id: str, outputs: Sequence[Output]
) -> Generator[bytes | memoryview, None, None]:
    """A ModelInferResponse with raw_output_contents, in parts."""
    response = pb.ModelInferResponse(
        model_name=model.name, model_version=str(model.version), id=request_id
    )
    for output in outputs:
        response.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
    yield response.SerializeToString()
    for output in outputs:
        yield b"\x32" + varint(octets_bytes(output))  # protobuf would copy the rest
        yield from output_octets(output)
