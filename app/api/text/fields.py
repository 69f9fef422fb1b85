"""The JSON body of a text call: parsing, and its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.api.payloads import MAX_UNCOUNTED_BYTES, parsed_json, without_strings
from app.codecs.tensor import kind
from app.codecs.values import short
from app.errors import InvalidInput, PayloadTooLarge

# The event loop must parse a body to find the model: this takes at most about ten milliseconds.
MAX_BODY_BYTES = 2 << 20
MAX_MARKS = 8192  # lists, objects and fields
MAX_NUMBERS = 300_000  # numbers and strings: as many tokens as OpenAI accepts in one request


def parsed(body: bytes) -> dict[str, Any]:
    """A parsed body, which must be a JSON object.

    Raises:
        PayloadTooLarge: if it would take long to parse.
        InvalidInput: if it is not a JSON object.
    """
    if len(body) > MAX_UNCOUNTED_BYTES:
        _check_size(body)
    document = parsed_json(body)
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
    """The name of a field that has two names: `name`, unless the body has the other one.

    Raises:
        InvalidInput: if it has both.
    """
    if other not in document:
        return name
    if name in document:
        raise InvalidInput(f"send {name!r} or {other!r}, not both", [{"param": other}])
    return other


def field(
    document: Mapping[str, Any], name: str, wanted: str, is_right: Callable[[Any], bool]
) -> Any:
    """The value of a field; None if it is missing or null.

    Args:
        document: the body.
        name: name of the field.
        wanted: what the value must be, for the error.
        is_right: whether a value is valid; must be quick for large lists.

    Raises:
        InvalidInput: if the value is invalid.
    """
    given = document.get(name)
    if given is None or is_right(given):
        return given
    got = short(given) if isinstance(given, str) else kind(given)
    if type(given) in (int, float):
        got = repr(given)
    raise InvalidInput(f"{name!r} must be {wanted}, got {got}", [{"param": name}])


def flag(document: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """The value of a boolean field; the default if it is missing or null.

    Raises:
        InvalidInput: if it is anything else.
    """
    given = field(document, name, "true or false", lambda given: isinstance(given, bool))
    return default if given is None else bool(given)


def at(place: str, error: InvalidInput) -> InvalidInput:
    """The error of a value, with its place in the body."""
    details = error.details[0] if error.details else {}
    return InvalidInput(f"{place}: {error}", [{**details, "param": place.partition("[")[0]}])
