"""What a handler's code returns or raises, as the frame of an answer. Nothing here raises."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from torchlane.handlers.api import NO_CONTENT, CallFailed, Request
from torchlane.handlers.content import InvalidInput
from torchlane.handlers.declarations import BYTES, Tensor
from torchlane.handlers.elements import as_texts
from torchlane.handlers.encoding import Encoded, NotAcceptable, encode_answer, npz_of
from torchlane.handlers.frames import FROM_HANDLER_BYTES, meta_of
from torchlane.handlers.plain import json_of
from torchlane.handlers.tensors import NPZ, OutputsDiffer, outputs_of

MAX_MESSAGE = 2000  # characters
MAX_DETAILS = 20
MAX_DETAILS_BYTES = 128 << 10  # of JSON; further ones are left out
MAX_FIELDS = 8  # of a detail
MAX_DETAIL = 500  # characters
MAX_FRAMES = 5  # of a traceback
MAX_NUMBER = 2**63  # what every reader of JSON keeps exact
OWN = str(Path(__file__).parent)


class Answer(NamedTuple):
    """The meta of a frame, as JSON, and its body."""

    meta: bytes
    body: bytes = b""


ABANDONED = Answer(b'{"code":"abandoned"}')
END_OF_STREAM = Answer(b'{"status":200,"media_type":""}')


def answer_of(value: Any, request: Request, outputs: Mapping[str, Tensor]) -> Answer:
    """The answer that has what `predict` returned; of an exception, see `failure_of`.

    Args:
        value: that it returned.
        request: of its caller.
        outputs: that the handler declares.
    """
    if isinstance(value, BaseException):
        return failure_of(value)
    try:
        if request.wants_tensors:
            status, encoded = 200, Encoded(NPZ, npz_of(outputs_of(value, outputs)))
        else:
            accept = "" if request.is_item else request.accept
            status, encoded = encode_answer(_with_texts(value, outputs), accept)
        if len(encoded.body) > FROM_HANDLER_BYTES:
            raise ValueError(
                f"the answer has {len(encoded.body)} bytes, the limit is {FROM_HANDLER_BYTES}"
            )
        if request.is_item and status != NO_CONTENT:
            _check_item(encoded.media_type, encoded.body)
        return Answer(meta_of({"status": status, "media_type": encoded.media_type}), encoded.body)
    except BaseException as error:  # of users' code: ends their request alone
        return failure_of(error)


def item_of(value: Any, request: Request, outputs: Mapping[str, Tensor]) -> bytes:
    """An item of a stream; see `answer_of` for the arguments.

    Raises:
        TypeError, ValueError: JSON has no form for it.
        NotAcceptable: JSON cannot have the bytes in an output.
        OutputsDiffer: it does not fit the outputs.
    """
    if request.wants_tensors:
        return npz_of(outputs_of(value, outputs))
    return json_of(_with_texts(value, outputs))


def _with_texts(value: Any, outputs: Mapping[str, Tensor]) -> Any:
    """What a handler returned, for JSON: bytes of declared outputs are texts.

    Raises:
        NotAcceptable: they are not UTF-8.
    """
    texts = {name for name, tensor in outputs.items() if tensor.dtype == BYTES}
    if not texts or not isinstance(value, Mapping):
        return value
    try:
        return {name: as_texts(each) if name in texts else each for name, each in value.items()}
    except UnicodeDecodeError as error:
        raise NotAcceptable(
            "the answer has bytes that are not UTF-8, which JSON needs; call the handler by the "
            "Open Inference Protocol, and request binary data"
        ) from error


def failure_of(error: BaseException) -> Answer:
    """The answer that says that a request failed."""
    try:
        return Answer(meta_of(_fields_of(error)))
    except BaseException as problem:  # of users' code, such as properties
        reason = f"{_kind(error)} cannot be sent: {_kind(problem)}: {message_of(problem)}"
    return Answer(meta_of({"code": "handler_failed", "error": _text(reason)}))


def reason_of(error: BaseException) -> str:
    """Type, message and place of an exception."""
    place = where(error)
    return _told(error) + (f" ({place})" if place else "")


def message_of(error: BaseException) -> str:
    """The message of an exception, bounded, as text that UTF-8 can have."""
    try:
        return _text(str(error))
    except BaseException as problem:  # its own code, which may raise anything
        return f"(its message raises {_kind(problem)})"


def where(error: BaseException) -> str:
    """The last calls of an exception outside of this package, as in `shop.py:12 in predict`."""
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__, -50)
    places = [
        f"{Path(each.filename).name}:{each.lineno} in {each.name}"
        for each in frames
        if not each.filename.startswith((OWN, "<frozen "))
    ]
    if isinstance(error, SyntaxError) and error.filename:
        places.append(f"{Path(error.filename).name}:{error.lineno}")
    return _text(", ".join(places[-MAX_FRAMES:]))


def _fields_of(error: BaseException) -> dict[str, Any]:
    if isinstance(error, CallFailed):
        wait_ms = error.retry_after_ms
        return {
            "code": _text(error.code),
            "error": message_of(error),
            "retry_after_ms": wait_ms if _is_number(wait_ms) else None,
        }
    if isinstance(error, InvalidInput):
        details = [*_details_of(error)]
        return {"code": "invalid_input", "error": message_of(error), "details": details}
    if isinstance(error, NotAcceptable):
        return {"code": "not_acceptable", "error": message_of(error)}
    if isinstance(error, OutputsDiffer):
        return {"code": "handler_outputs", "error": message_of(error)}
    return {"code": "handler_failed", "error": _told(error), "where": where(error)}


def _details_of(error: InvalidInput) -> Iterator[dict[str, str | int | float]]:
    size = 0
    for each in error.details[:MAX_DETAILS]:
        detail = _detail(each)
        size += len(meta_of(detail))
        if size > MAX_DETAILS_BYTES:
            return
        yield detail


def _detail(detail: object) -> dict[str, str | int | float]:
    """A detail as JSON can have it: its texts and numbers; everything else as a text."""
    fields = detail if isinstance(detail, Mapping) else {"error": detail}
    return {
        _text(str(name), MAX_DETAIL): each if _is_number(each) else _text(str(each), MAX_DETAIL)
        for name, each in islice(fields.items(), MAX_FIELDS)
    }


def _is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that JSON can have."""
    if isinstance(value, int):
        return abs(value) < MAX_NUMBER
    return isinstance(value, float) and math.isfinite(value)


def _told(error: BaseException) -> str:
    """Type and message of an exception."""
    message = message_of(error)
    return f"{_kind(error)}: {message}" if message else _kind(error)


def _kind(error: BaseException) -> str:
    return _text(type(error).__name__, MAX_DETAIL)


def _text(text: str, most: int = MAX_MESSAGE) -> str:
    """A text, bounded, that UTF-8 can have."""
    text = text if len(text) <= most else f"{text[:most]}..."
    return text.encode(errors="backslashreplace").decode()


def _check_item(media_type: str, body: bytes) -> None:
    """Check the JSON of an item, which becomes a part of a larger document.

    Raises:
        ValueError: it is not JSON.
    """
    if media_type.partition(";")[0].strip().lower() == "application/json":
        try:
            json.loads(body.decode(), parse_constant=_no_constant)
        except ValueError as error:
            raise ValueError(f"the handler's Response is not JSON: {error}") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")
