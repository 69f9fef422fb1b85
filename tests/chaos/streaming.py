"""Reads the answer of a handler that yields: its items, and why there are no more of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.chaos.connection import ChaosAnswer
from tests.chaos.request import MEDIA_TYPES, Form, Request
from tests.chaos.verdict import Misjudged, Verdict

ERROR, DATA = "event: error\ndata: ", "data: "


class Streamed(NamedTuple):
    """What a stream came to.

    Attributes:
        rows: of its items, in order.
        code: of the error that ended it, or "ok".
    """

    rows: Sequence[Sequence[float]]
    code: str


def tells_why(request: Request, got: ChaosAnswer) -> bool:
    """Whether an answer has its end, or tells by an error why it has none, or is to be judged."""
    try:
        return got.is_whole or _parts(request.form, got.body)[1] is not None
    except Misjudged:
        return True


def read_stream(request: Request, got: ChaosAnswer) -> Streamed:
    """Read an answer with the status 200 that tells how it ended.

    Raises:
        Misjudged: it is none.
    """
    if got.headers.get("content-type") != MEDIA_TYPES[request.form]:
        raise Misjudged(Verdict.WRONG, f"the answer is {got.headers.get('content-type')}")
    if got.is_chunked == (request.form == "json"):
        raise Misjudged(Verdict.WRONG, "a list comes in one piece, and nothing else does")
    items, error = _parts(request.form, got.body)
    code = "ok"
    try:
        rows = [each["row"] for each in items]
        if error is not None:
            code, named = error["code"], error["request_id"]
            if named != request.id or not error["error"]:
                raise Misjudged(Verdict.MISDELIVERED, f"the error names {named}: {error['error']}")
    except (KeyError, TypeError) as wrong:
        raise Misjudged(Verdict.WRONG, f"no item of a stream, or no error: {wrong}") from wrong
    if got.is_whole != (error is None):
        raise Misjudged(Verdict.WRONG, "the body has an end, and an error before it")
    return Streamed(rows, code)


def _parts(form: Form, body: bytes) -> tuple[list[Any], Any]:
    """The items, and the error at the end if there is one.

    Raises:
        Misjudged: it has not this form, up to its last whole part.
    """
    try:
        text = body.decode()
        if form == "json":
            return list(json.loads(text)), None
        *parts, _ = text.split("\n\n" if form == "sse" else "\n")
        if form == "sse":
            told = parts.pop() if parts and parts[-1].startswith(ERROR) else None
            if wrong := [each[:80] for each in parts if not each.startswith(DATA)]:
                raise Misjudged(Verdict.WRONG, f"no event: {wrong[0]}")
            items = [json.loads(each.removeprefix(DATA)) for each in parts]
            return items, None if told is None else json.loads(told.removeprefix(ERROR))
        items = [*map(json.loads, parts)]
    except (ValueError, TypeError) as error:
        raise Misjudged(Verdict.WRONG, f"not the form of a stream: {error}") from error
    return items, items.pop() if items and "code" in items[-1] else None
