"""Exceptions of a handler's code as the meta of an answer."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchlane.handlers.api import CallFailed
from torchlane.handlers.content import InvalidInput
from torchlane.handlers.encoding import NotAcceptable

MAX_MESSAGE = 2000  # characters
MAX_FRAMES = 5  # of a traceback
OWN = str(Path(__file__).parent)


def meta_of(error: BaseException) -> dict[str, Any]:
    """The fields of an answer that says that a request failed."""
    if isinstance(error, CallFailed):
        return {
            "code": error.code,
            "error": message_of(error),
            "retry_after_ms": error.retry_after_ms,
        }
    if isinstance(error, InvalidInput):
        return {
            "code": "invalid_input",
            "error": message_of(error),
            "details": [*map(dict, error.details)],
        }
    if isinstance(error, NotAcceptable):
        return {"code": "not_acceptable", "error": message_of(error)}
    return {"code": "handler_failed", "error": reason_of(error), "where": where(error)}


def reason_of(error: BaseException) -> str:
    """Type and message of an exception."""
    message = message_of(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def message_of(error: BaseException) -> str:
    """The message of an exception, bounded, as text that UTF-8 can have."""
    try:
        text = str(error)[: MAX_MESSAGE + 1]
    except BaseException as problem:  # its own code, which may raise anything
        text = f"(its message raises {type(problem).__name__})"
    if len(text) > MAX_MESSAGE:
        text = f"{text[:MAX_MESSAGE]}..."
    return text.encode(errors="backslashreplace").decode()


def where(error: BaseException) -> str:
    """The last calls of an exception outside of this package, as in `shop.py:12 in predict`."""
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__, -50)
    shown = [
        f"{Path(each.filename).name}:{each.lineno} in {each.name}"
        for each in frames
        if not each.filename.startswith(OWN)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        shown.append(f"{Path(error.filename).name}:{error.lineno}")
    return ", ".join(shown[-MAX_FRAMES:])[:MAX_MESSAGE]
