"""Reading of infer requests: JSON, followed by the bytes of tensors.

The framing is Triton's binary tensor data extension: the header `Inference-Header-Content-Length`
has the length of the JSON; the tensors follow in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import orjson

from app.api.payloads import MAX_DIGITS
from app.codecs.missing import nan_as_null
from app.codecs.values import short
from app.errors import InvalidInput
from app.types import Array
from models.system.byte_order import strip_byte_order_mark

HEADER_LENGTH = "Inference-Header-Content-Length"
MAX_RANK = 32
MAX_TENSORS = 64  # inputs, and outputs, of one request
US = 1e-6
NOT_JSON_NUMBERS = (b"NaN", b"Infinity")
SHARED_MEMORY = "shared_memory_region"
Parameters = Mapping[str, object]


class Tensor(NamedTuple):
    """An input as received.

    Attributes:
        shape: includes the batch axis; no size is negative.
        data: numbers or strings of JSON, or bytes.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[object] | Array | memoryview


class Wanted(NamedTuple):
    """A requested output.

    Attributes:
        binary: whether its values are sent as bytes after the JSON.
        classes: number of highest scores to send as strings; 0 for the tensor itself.
    """

    name: str
    binary: bool = False
    classes: int = 0


class InferRequest(NamedTuple):
    """The content of an infer request.

    Attributes:
        inputs: empty if the body is the raw bytes of the only input.
        outputs: None for all.
        id: repeated in the answer, unless it is empty.
        binary: whether all outputs are sent as bytes, if no output is named.
        timeout_s: infinite if the request has none.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Wanted, ...] | None = None
    id: str = ""
    binary: bool = False
    timeout_s: float = math.inf


RAW = InferRequest((), binary=True)


def header_length(given: bytes) -> int:
    """The length of the JSON in bytes, as a header gives it.

    Raises:
        InvalidInput: if it is not a whole number.
    """
    digits = given.strip(b" \t")  # not part of the value: RFC 9110, section 5.5
    if not digits.isdigit() or len(digits) > MAX_DIGITS:
        raise InvalidInput(
            f"{HEADER_LENGTH} must be the number of bytes of the JSON at the start of the body, "
            f"got {short(given.decode('latin-1'))}"
        )
    return int(digits)


def load(head: bytes, *, nan: bool = False) -> Any:
    """The JSON of a request; with `nan` the word NaN is read as null.

    Raises:
        InvalidInput: if it is malformed.
    """
    try:
        head = strip_byte_order_mark(head)
        return orjson.loads(nan_as_null(head) if nan else head)
    except ValueError as error:
        at = error.pos if isinstance(error, orjson.JSONDecodeError) else 0
        there = head[max(0, at - 1) : at + len(b"-Infinity")]
        if any(name in there for name in NOT_JSON_NUMBERS):
            raise InvalidInput(
                "the JSON has NaN or Infinity, which are not valid in JSON, and which this model "
                f"does not accept; send finite numbers ({error})"
            ) from error
        raise InvalidInput(f"the JSON is malformed: {error}") from error


def read_request(document: Any, octets: memoryview) -> InferRequest:
    """The content of a request.

    Args:
        document: its JSON; the data of an input may be an array.
        octets: the bytes after the JSON.

    Raises:
        InvalidInput: with what was expected and what was sent.
    """
    if not isinstance(document, dict):
        raise InvalidInput('the JSON must be an object: {"inputs": [...]}')
    parameters = parameters_of(document, "the request")
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise InvalidInput("'inputs' must be a list of at least one tensor")
    _check_number(inputs, "inputs")
    tensors = []
    at = 0
    for index, each in enumerate(inputs):
        tensor, at = _tensor(each, f"inputs[{index}]", octets, at)
        tensors.append(tensor)
    if at != len(octets):
        raise InvalidInput(
            f"{len(octets)} bytes follow the JSON, but the inputs' binary_data_size add up to {at}"
        )
    binary = flag(parameters, "binary_data_output", "the request") or False
    return InferRequest(
        tuple(tensors),
        _outputs(document.get("outputs")),
        _id(document.get("id")),
        binary,
        timeout_of(parameters),
    )


def _tensor(given: Any, where: str, octets: memoryview, at: int) -> tuple[Tensor, int]:
    """An input, and where the bytes of the next input begin."""
    if not isinstance(given, dict):
        raise InvalidInput(f"{where} must be an object with name, shape, datatype and data")
    name, datatype, data = given.get("name"), given.get("datatype"), given.get("data")
    if not isinstance(name, str) or not isinstance(datatype, str):
        raise InvalidInput(f"{where} must have a name and a datatype, which are strings")
    where = f"input {short(name)}"
    shape = _shape(given.get("shape"), where)
    parameters = parameters_of(given, where)
    reject_shared_memory(parameters, where)
    size = parameters.get("binary_data_size")
    if size is None:
        if data is None:
            raise InvalidInput(f"{where} has neither data nor the parameter binary_data_size")
        return Tensor(name, datatype, shape, data if _is_many(data) else [data]), at
    if data is not None:
        raise InvalidInput(f"{where} has both data and the parameter binary_data_size")
    if not is_whole(size) or size < 0:
        raise InvalidInput(f"{where}: binary_data_size must be a whole number of at least 0")
    if size > len(octets) - at:
        raise InvalidInput(
            f"{where}: binary_data_size is {size}, but only {len(octets) - at} bytes are left "
            "after the JSON"
        )
    return Tensor(name, datatype, shape, octets[at : at + size]), at + size


def _is_many(data: object) -> bool:
    return not isinstance(data, str | int | float | bool | dict)


def _shape(given: object, where: str) -> tuple[int, ...]:
    sizes: Sequence[object] = given if isinstance(given, list) else ()
    if not sizes or len(sizes) > MAX_RANK:
        raise InvalidInput(f"{where}: shape must be a list of 1 to {MAX_RANK} sizes")
    return checked_shape(sizes, where)


def checked_shape(sizes: Sequence[object], where: str) -> tuple[int, ...]:
    """A shape whose sizes are whole numbers of at least 0.

    Raises:
        InvalidInput: if one is not.
    """
    found = tuple(size for size in sizes if is_whole(size) and size >= 0)
    if len(found) != len(sizes):
        raise InvalidInput(f"{where}: the sizes of a shape must be whole numbers of at least 0")
    return found


def _outputs(given: object) -> tuple[Wanted, ...] | None:
    if given is None or given == []:
        return None
    if not isinstance(given, list):
        raise InvalidInput("'outputs' must be a list of objects with a name")
    _check_number(given, "outputs")
    found: dict[str, Wanted] = {}
    for index, each in enumerate(given):
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str):
            raise InvalidInput(f"outputs[{index}] must be an object with a name")
        where = f"output {short(name)}"
        parameters = parameters_of(each, where)
        reject_shared_memory(parameters, where)
        binary = flag(parameters, "binary_data", where) or False
        # An output named twice is answered once.
        found.setdefault(name, Wanted(name, binary, classes_of(parameters, where)))
    return tuple(found.values())


def _id(given: object) -> str:
    if given is not None and not isinstance(given, str):
        raise InvalidInput("'id' must be a string")
    return given or ""


def _check_number(tensors: Sequence[object], what: str) -> None:
    if len(tensors) > MAX_TENSORS:
        raise InvalidInput(f"{len(tensors)} {what}; a request may have at most {MAX_TENSORS}")


def parameters_of(given: Mapping[str, object], where: str) -> Parameters:
    """The parameters of a part of a request, including unknown ones.

    Raises:
        InvalidInput: if they are not an object.
    """
    parameters = given.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidInput(f"the parameters of {where} must be an object")
    return parameters


def timeout_of(parameters: Parameters) -> float:
    """The parameter `timeout`, from microseconds to seconds; infinite if it is 0 or missing.

    Raises:
        InvalidInput: if it is not a whole number of at least 0.
    """
    given = parameters.get("timeout")
    if given is None:
        return math.inf
    if not is_whole(given) or given < 0:
        raise InvalidInput(
            "the parameter timeout must be a whole number of microseconds, at least 0"
        )
    return min(given, 10**MAX_DIGITS) * US or math.inf


def classes_of(parameters: Parameters, where: str) -> int:
    """The number of classes that the parameter `classification` requests; 0 if it is missing.

    Raises:
        InvalidInput: if it is not a whole number of at least 0.
    """
    given = parameters.get("classification")
    if given is None:
        return 0
    if not is_whole(given) or given < 0:
        raise InvalidInput(f"{where}: classification must be a whole number of at least 0")
    return given


def reject_shared_memory(parameters: Parameters, where: str) -> None:
    """Reject a tensor in shared memory, which the server neither reads nor writes.

    Raises:
        InvalidInput: if the parameters name a region.
    """
    if SHARED_MEMORY in parameters:
        raise InvalidInput(
            f"{where} is in shared memory, which this server does not support; GET /v2 lists its "
            "extensions"
        )


def flag(parameters: Parameters, name: str, where: str) -> bool | None:
    """A parameter that is true or false; None if it is missing.

    Raises:
        InvalidInput: if it is anything else.
    """
    given = parameters.get(name)
    if given is not None and not isinstance(given, bool):
        raise InvalidInput(f"the parameter {name} of {where} must be true or false")
    return given


def is_whole(given: object) -> TypeGuard[int]:
    """Whether a value is a whole number and not a bool."""
    return type(given) is int
