"""The JSON body of a call for text: parsing it, and its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from app.api.payloads import MAX_UNCOUNTED_BYTES, without_strings
from app.codecs.tensor import kind
from app.codecs.values import short
from app.errors import InvalidInput, PayloadTooLarge

# The event loop must parse a body to learn the model: about ten milliseconds at most.
MAX_BODY_BYTES = 2 << 20
MAX_MARKS = 8192  # of lists, objects and fields
MAX_NUMBERS = 300_000  # and strings: as many tokens as OpenAI takes in one request


def parsed(body: bytes) -> dict[str, Any]:
    """A body, which must be a JSON object.

    Raises:
        PayloadTooLarge: it would take long to parse.
        InvalidInput: it is something else.
    """
    if len(body) > MAX_UNCOUNTED_BYTES:
        _check_size(body)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput("the body must be a JSON object")
    return document


def _check_size(body: bytes) -> None:
    if len(body) > MAX_BODY_BYTES:
        raise PayloadTooLarge(
            f"the body has {len(body)} bytes, the limit for this call is {MAX_BODY_BYTES}; split it"
        )
    for left in (body, without_strings(body)):
        marks, commas = sum(map(left.count, (b"[", b"{", b":"))), left.count(b",")
        if marks <= MAX_MARKS and commas <= MAX_NUMBERS:
            return
    raise PayloadTooLarge(
        f"the body has {marks} lists, objects and fields and {commas} commas, the limits are "
        f"{MAX_MARKS} and {MAX_NUMBERS}; split it"
    )


def one_of(document: Mapping[str, Any], name: str, other: str) -> str:
    """Which of two names of the same field a body has: `name`, unless it has the other one.

    Raises:
        InvalidInput: it has both.
    """
    if other not in document:
        return name
    if name in document:
        raise InvalidInput(f"send {name!r} or {other!r}, not both", [{"param": other}])
    return other


def field(
    document: Mapping[str, Any], name: str, wanted: str, is_right: Callable[[Any], bool]
) -> Any:
    """A field that may be missing or null, which is None.

    Args:
        document: the body.
        name: of the field.
        wanted: what it must be, for the error.
        is_right: whether a value is right; must be quick for large lists.

    Raises:
        InvalidInput: it is something else.
    """
    given = document.get(name)
    if given is None or is_right(given):
        return given
    got = short(given) if isinstance(given, str) else kind(given)
    if type(given) in (int, float):
        got = repr(given)
    raise InvalidInput(f"{name!r} must be {wanted}, got {got}", [{"param": name}])


def flag(document: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """A field that is true or false; null or missing: the default.

    Raises:
        InvalidInput: it is something else.
    """
    given = field(document, name, "true or false", lambda given: isinstance(given, bool))
    return default if given is None else bool(given)


def at(place: str, error: InvalidInput) -> InvalidInput:
    """The error of a value, with its place in the body."""
    details = error.details[0] if error.details else {}
    return InvalidInput(f"{place}: {error}", [{**details, "param": place.partition("[")[0]}])
