"""What a handler's code returns or raises, as the frame of an answer. Nothing here raises."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchlane.handlers.api import CallFailed, Request
from torchlane.handlers.content import InvalidInput
from torchlane.handlers.encoding import NotAcceptable, encode_answer
from torchlane.handlers.frames import FROM_HANDLER_BYTES, MAX_META_BYTES

MAX_MESSAGE = 2000  # characters
MAX_DETAILS = 20
MAX_DETAIL = 500  # characters
MAX_FRAMES = 5  # of a traceback
OWN = str(Path(__file__).parent)
META = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class Answer(NamedTuple):
    """The meta of a frame, as JSON, and its body."""

    meta: bytes
    body: bytes = b""


ABANDONED = Answer(b'{"code":"abandoned"}')
END_OF_STREAM = Answer(b'{"status":200,"media_type":""}')


def answer_of(value: Any, request: Request) -> Answer:
    """The answer that has what `predict` returned; of an exception, see `failure_of`."""
    if isinstance(value, BaseException):
        return failure_of(value)
    try:
        status, encoded = encode_answer(value, "" if request.is_item else request.accept)
        if len(encoded.body) > FROM_HANDLER_BYTES:
            raise ValueError(
                f"the answer has {len(encoded.body)} bytes, the limit is {FROM_HANDLER_BYTES}"
            )
        if request.is_item:
            _check_item(encoded.media_type, encoded.body)
    except BaseException as error:  # of users' code: ends their request alone
        return failure_of(error)
    meta = {"status": status, "media_type": encoded.media_type}
    return Answer(META.encode(meta).encode(), encoded.body)


def failure_of(error: BaseException) -> Answer:
    """The answer that says that a request failed."""
    try:
        text = META.encode(_meta_of(error)).encode()
        if len(text) <= MAX_META_BYTES:
            return Answer(text)
        problem = f"its fields have {len(text)} bytes"
    except BaseException as failure:  # of users' code, such as properties
        problem = f"its fields raise {type(failure).__name__}"
    told = f"{type(error).__name__}, which cannot be sent: {problem}"
    return Answer(META.encode({"code": "handler_failed", "error": _text(told)}).encode())


def reason_of(error: BaseException) -> str:
    """Type, message and place of an exception."""
    message, place = message_of(error), where(error)
    kind = type(error).__name__
    return (f"{kind}: {message}" if message else kind) + (f" ({place})" if place else "")


def message_of(error: BaseException) -> str:
    """The message of an exception, bounded, as text that UTF-8 can have."""
    try:
        return _text(str(error))
    except BaseException as problem:  # its own code, which may raise anything
        return f"(its message raises {type(problem).__name__})"


def where(error: BaseException) -> str:
    """The last calls of an exception outside of this package, as in `shop.py:12 in predict`."""
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__, -50)
    shown = [
        f"{Path(each.filename).name}:{each.lineno} in {each.name}"
        for each in frames
        if not each.filename.startswith((OWN, "<frozen "))
    ]
    if isinstance(error, SyntaxError) and error.filename:
        shown.append(f"{Path(error.filename).name}:{error.lineno}")
    return _text(", ".join(shown[-MAX_FRAMES:]))


def _meta_of(error: BaseException) -> dict[str, Any]:
    if isinstance(error, CallFailed):
        wait_ms = error.retry_after_ms
        return {
            "code": _text(error.code),
            "error": message_of(error),
            "retry_after_ms": wait_ms if isinstance(wait_ms, int | float) else None,
        }
    if isinstance(error, InvalidInput):
        details = [_detail(each) for each in error.details[:MAX_DETAILS]]
        return {"code": "invalid_input", "error": message_of(error), "details": details}
    if isinstance(error, NotAcceptable):
        return {"code": "not_acceptable", "error": message_of(error)}
    kind, message = type(error).__name__, message_of(error)
    reason = f"{kind}: {message}" if message else kind
    return {"code": "handler_failed", "error": reason, "where": where(error)}


def _detail(detail: object) -> dict[str, str | int | float]:
    """A detail as JSON can have it: its texts and numbers; everything else as a text."""
    fields = detail if isinstance(detail, Mapping) else {"error": detail}
    return {
        _text(str(name), MAX_DETAIL): each
        if isinstance(each, int | float) and math.isfinite(each)
        else _text(str(each), MAX_DETAIL)
        for name, each in fields.items()
    }


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
            json.loads(body)
        except ValueError as error:
            raise ValueError(f"the handler's Response is not JSON: {error}") from error
