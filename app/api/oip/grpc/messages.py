"""Reading of an infer call's message, and writing of its answer.

The field numbers come from protos/inference.proto.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Generator, Mapping, Sequence

import numpy as np

from app.api.oip.answers import Output, octets_bytes, output_octets
from app.api.oip.datatypes import BYTES, DTYPES
from app.api.oip.grpc.wire import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    Field,
    Reader,
    integers,
    varint,
    written,
)
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
from app.codecs.values import short
from app.errors import InvalidInput, PayloadTooLarge
from app.registry.loaded_models import LoadedModel

ENVELOPE_FIELDS = 2000  # names, shapes and parameters around the items
# Fields of InferTensorContents by datatype: the field's number, and the wire type of an element.
CONTENTS: Mapping[str, tuple[int, int]] = {
    "BOOL": (1, VARINT),
    "INT8": (2, VARINT),
    "INT16": (2, VARINT),
    "INT32": (2, VARINT),
    "INT64": (3, VARINT),
    "UINT8": (4, VARINT),
    "UINT16": (4, VARINT),
    "UINT32": (4, VARINT),
    "UINT64": (5, VARINT),
    "FP32": (6, FIXED32),
    "FP64": (7, FIXED64),
    BYTES: (8, LENGTH),
}
DOUBLE = struct.Struct("<d")


class InferMessage:
    """A ModelInferRequest.

    Args:
        data: the message.
        max_items: maximum number of items.

    Attributes:
        name: the model's name.
        version: the model's version; empty for the version that serves requests without one.

    Raises:
        InvalidInput: if it is malformed.
        PayloadTooLarge: if it has more fields than any request needs.
    """

    __slots__ = ("_id", "_inputs", "_outputs", "_parameters", "_raw", "_reader", "name", "version")

    def __init__(self, data: bytes, max_items: int) -> None:
        reader = self._reader = Reader(data, ENVELOPE_FIELDS + max_items)
        self.name = self.version = self._id = ""
        self._parameters: list[Field] = []
        self._inputs: list[Field] = []
        self._outputs: list[Field] = []
        self._raw: list[Field] = []
        for field in reader.fields(0, len(data)):
            number, kind, _, _ = field
            if kind != LENGTH:
                continue  # unknown, like all fields of other wire types
            if number == 5:
                self._inputs.append(field)
            elif number == 7:
                self._raw.append(field)
            elif number == 1:
                self.name = reader.text(field)
            elif number == 2:
                self.version = reader.text(field)
            elif number == 3:
                self._id = reader.text(field)
            elif number == 6:
                self._outputs.append(field)
            elif number == 4:
                self._parameters.append(field)
        for what, many in (("inputs", self._inputs), ("outputs", self._outputs)):
            if len(many) > MAX_TENSORS:
                raise InvalidInput(f"{len(many)} {what}; a request may have at most {MAX_TENSORS}")

    def request(self, budget: Budget, max_bytes: int) -> InferRequest:
        """The content of the request.

        Args:
            budget: budget of the request's pictures.
            max_bytes: maximum size of numbers.

        Raises:
            InvalidInput: with what was expected and what was sent.
            PayloadTooLarge: if numbers would exceed `max_bytes`.
            TooLongForLoop: see `Budget`.
        """
        if not self._inputs:
            raise InvalidInput("'inputs' must have at least one tensor")
        if self._raw and len(self._raw) != len(self._inputs):
            raise InvalidInput(
                f"{len(self._raw)} raw_input_contents for {len(self._inputs)} inputs: send one for "
                "each input, or none"
            )
        tensors = tuple(
            self._tensor(each, self._raw[index] if self._raw else None, budget, max_bytes)
            for index, each in enumerate(self._inputs)
        )
        outputs = tuple(self._output(each) for each in self._outputs) if self._outputs else None
        timeout_s = timeout_of(self._read_parameters(self._parameters))
        return InferRequest(tensors, outputs, self._id, True, timeout_s)

    def _tensor(self, given: Field, raw: Field | None, budget: Budget, max_bytes: int) -> Tensor:
        reader = self._reader
        name = datatype = ""
        sizes: list[int] = []
        parameters: list[Field] = []
        contents: list[Field] = []
        for field in reader.fields(given[2], given[3]):
            number, kind, begin, end = field
            if number == 3 and kind in (LENGTH, VARINT):
                if end - begin > MAX_RANK * 10:
                    raise InvalidInput(f"a shape may have at most {MAX_RANK} sizes")
                sizes += reader.signed_all(field)
            elif kind != LENGTH:
                continue
            elif number == 1:
                name = reader.text(field)
            elif number == 2:
                datatype = reader.text(field)
            elif number == 4:
                parameters.append(field)
            elif number == 5:
                contents.append(field)
        where = f"input {short(name)}"
        if not 0 < len(sizes) <= MAX_RANK:
            raise InvalidInput(f"{where}: shape must have 1 to {MAX_RANK} sizes")
        shape = checked_shape(sizes, where)
        reject_shared_memory(self._read_parameters(parameters), where)
        if raw is not None:
            if contents:
                raise InvalidInput(f"{where} has contents, but there are raw_input_contents too")
            return Tensor(name, datatype, shape, reader.octets([raw]))
        if not contents:
            raise InvalidInput(f"{where} has no contents, and there are no raw_input_contents")
        budget.read(sum(end - begin for _, _, begin, end in contents))
        data = self._contents(contents, datatype, shape, where, max_bytes)
        return Tensor(name, datatype, shape, data)

    def _contents(
        self,
        contents: Sequence[Field],
        datatype: str,
        shape: tuple[int, ...],
        where: str,
        max_bytes: int,
    ) -> memoryview | list[object]:
        """Typed contents: elements of BYTES, or numbers as their bytes."""
        if datatype not in CONTENTS:
            raise InvalidInput(
                f"{where}: the datatype {short(datatype)} has no typed contents; send "
                "raw_input_contents"
            )
        reader, (number, element) = self._reader, CONTENTS[datatype]
        # Several contents are concatenated.
        fields = [field for _, _, begin, end in contents for field in reader.fields(begin, end)]
        if any(each != number or kind not in (LENGTH, element) for each, kind, _, _ in fields):
            raise InvalidInput(f"{where}: its contents are not those of {datatype}")
        if datatype == BYTES:
            return [reader.data[begin:end] for _, _, begin, end in fields]
        octets = reader.octets(fields)
        if element != VARINT:
            return octets
        dtype = np.dtype(DTYPES.get(datatype) or datatype.lower())
        count = math.prod(shape)
        if count * dtype.itemsize > max_bytes:
            raise PayloadTooLarge(f"{where}: {count} numbers, the limit is {max_bytes} bytes")
        numbers = integers(octets, dtype, count).astype(dtype.newbyteorder("<"), copy=False)
        return memoryview(numbers.tobytes())

    def _output(self, given: Field) -> Wanted:
        reader = self._reader
        name = ""
        parameters: list[Field] = []
        for field in reader.fields(given[2], given[3]):
            number, kind, _, _ = field
            if kind == LENGTH and number == 1:
                name = reader.text(field)
            elif kind == LENGTH and number == 2:
                parameters.append(field)
        if not parameters:
            return Wanted(name, True)
        where = f"output {short(name)}"
        known = self._read_parameters(parameters)
        reject_shared_memory(known, where)
        return Wanted(name, True, classes_of(known, where))

    def _read_parameters(self, entries: Sequence[Field]) -> Parameters:
        """A map of parameters; for duplicate keys, the last entry wins."""
        reader = self._reader
        found: dict[str, object] = {}
        for _, _, start, stop in entries:
            key = ""
            value: object = None
            for field in reader.fields(start, stop):
                number, kind, begin, end = field
                if kind == LENGTH and number == 1:
                    key = reader.text(field)
                elif kind == LENGTH and number == 2:
                    for choice in reader.fields(begin, end):
                        value = self._parameter(choice, value)
            found[key] = value
        return found

    def _parameter(self, choice: Field, before: object) -> object:
        """The value of an InferParameter; `before` if this field is unknown."""
        reader = self._reader
        match choice[:2]:
            case 1, 0:
                return reader.unsigned(choice) != 0
            case 2, 0:
                return reader.signed(choice)
            case 3, 2:
                return reader.text(choice)
            case 4, 1:
                (value,) = DOUBLE.unpack_from(reader.data, choice[2])
                return value
            case 5, 0:
                return reader.unsigned(choice)
        return before


def response_parts(
    model: LoadedModel, request_id: str, outputs: Sequence[Output]
) -> Generator[bytes | memoryview, None, None]:
    """A ModelInferResponse with raw_output_contents, in parts."""
    yield written(1, model.id.name.encode()) + written(2, b"%d" % model.id.version)
    if request_id:
        yield written(3, request_id.encode())
    for output in outputs:
        shape = b"".join(map(varint, output.shape))
        yield written(
            5,
            b"%b%b%b"
            % (
                written(1, output.name.encode()),
                written(2, output.datatype.encode()),
                written(3, shape),
            ),
        )
    for output in outputs:
        yield b"\x32" + varint(octets_bytes(output))  # `written` would copy the rest
        yield from output_octets(output)
