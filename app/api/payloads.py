"""Conversion of HTTP bodies to items, by media type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson

from app.api.multipart import FORM, File, read_files, read_parts
from app.codecs.base import (
    JSON,
    NPY,
    OCTET_STREAM,
    TEXT,
    Budget,
    Codec,
    Marks,
    at_index,
    check_count,
)
from app.codecs.missing import nan_as_null
from app.codecs.sniffing import KNOWN, media_type_in, sniffed
from app.codecs.tensor import listed
from app.errors import (
    InvalidInput,
    InvalidItem,
    PayloadTooLarge,
    UnknownParameter,
    UnsupportedMediaType,
)
from app.types import Item
from models.system.byte_order import NotUtf8Error, strip_byte_order_mark

MAX_DIGITS = 18  # of a number in a header or URL: a longer number exceeds every limit
# A list needs three bytes in JSON but at least 64 in Python: only smaller bodies are not counted.
MAX_UNCOUNTED_BYTES = 64 << 10
SCAN_BYTES = 1 << 20  # searched for strings at once: takes some milliseconds, with the GIL
QUOTE = np.uint8(ord('"'))
SHAPES = {False: '{"input": X}', True: '{"inputs": [X, ...]}'}  # of one item, and of many
MAX_BLANKS = 1000  # before JSON without a Content-Type
USUAL_SPELLINGS = frozenset((JSON, OCTET_STREAM, NPY))
UTF_8 = frozenset(("utf-8", "utf8", "us-ascii"))
MAX_SHOWN = 40  # characters of a header, in an error
CURLS_DEFAULT = "application/x-www-form-urlencoded"  # with -d and --data-binary, for any content


def check_length(size: int, limit: int) -> None:
    """Reject a body whose actual or declared size is too large.

    Raises:
        PayloadTooLarge: with both numbers.
    """
    if size > limit:
        raise PayloadTooLarge(
            f"the body has at least {size} bytes, the limit is {limit}; split it or send less"
        )


def read_items(
    codec: Codec,
    content_type: str,
    body: bytes,
    *,
    many: bool,
    max_items: int,
    again: bool = False,
    budget: Callable[[], Budget] = Budget,
    invalid: dict[int, InvalidItem] | None = None,
) -> list[Item]:
    """The items of a body, in order.

    Args:
        codec: the model's.
        content_type: as the caller sent it.
        body: as the caller sent it, without its Content-Encoding.
        many: whether the body holds many items.
        max_items: maximum number of items.
        again: whether an attempt on the event loop has failed.
        budget: makes the request's budget, for items that are not simply numbers.
        invalid: gets the errors of invalid items, which are left out, by index; None: the first
            one is raised. Only for JSON and forms.

    Raises:
        TooLongForLoop: if called on the event loop; call it again in a thread.
        UnknownParameter: if the body has a format whose items cannot be told apart when one is bad.
        InvalidInput: if the body or an item is invalid; `details` has the item's index.
        UnsupportedMediaType: if the model does not read this Content-Type.
        PayloadTooLarge: if there are more than `max_items`.
    """
    media_type = media_type_of(codec, content_type, body)
    most = max_items if many else None
    if media_type == JSON and not again:  # at any length: it holds the GIL
        items = codec.decode_numbers("inputs" if many else "input", body, max_items=most)
        if items is not None:
            return items
    limits = budget()
    if media_type == FORM:
        limits.read(len(body))
        return _items_of_form(codec, content_type, body, most, limits, invalid)
    if media_type != JSON:
        _check_partial(media_type, invalid)
        return codec.decode_raw(media_type, body, max_items=most, budget=limits)
    limits.read(len(body))
    check_marks(body, codec, max_items if many else 1, limits)
    values = _values(codec, body, many=many)
    if not many:
        return [codec.decode(values[0], limits)]
    check_count(len(values), max_items)
    if invalid is not None:
        return _valid_items(codec, values, limits, invalid)
    return [_decode_at(codec, index, value, limits) for index, value in enumerate(values)]


def _check_partial(media_type: str, invalid: object) -> None:
    if invalid is not None:
        raise UnknownParameter(
            "partial is only for JSON and forms of files, because one wrong item makes other "
            f"bodies unreadable; this one is {media_type}: send JSON, or omit partial"
        )


def _items_of_form(
    codec: Codec,
    content_type: str,
    body: bytes,
    max_items: int | None,
    budget: Budget,
    invalid: dict[int, InvalidItem] | None,
) -> list[Item]:
    many = max_items is not None
    if codec.parts:
        return [_item_of_parts(codec, content_type, body, budget, many=many)]
    inputs, instead = [spec.name for spec in codec.manifest.inputs], None
    if len(inputs) > 1:
        instead = (
            "this model does not take its inputs as parts of a form; send JSON: "
            f"{SHAPES[many]}, where X is an object with {listed(inputs)}"
        )
    files = read_files(content_type, body, max_items, instead=instead)
    return _items_of_files(codec, files, budget, many=many, invalid=invalid)


def _valid_items(
    codec: Codec, values: Sequence[object], budget: Budget, invalid: dict[int, InvalidItem]
) -> list[Item]:
    items = []
    for index, value in enumerate(values):
        try:
            items.append(codec.decode(value, budget))
        except InvalidInput as error:
            budget.error()
            invalid[index] = InvalidItem(str(error), error.details)
    return items


def media_type_of(codec: Codec, content_type: str, body: bytes) -> str:
    """The media type that a Content-Type names, or that the body's first bytes show.

    Raises:
        UnsupportedMediaType: if curl's default type was sent and the body is neither JSON nor a
            known file; or if a text is not in UTF-8.
    """
    if content_type in USUAL_SPELLINGS:
        return content_type
    media_type = media_type_in(content_type)
    if media_type == TEXT:
        check_charset(content_type)
    return _guessed(codec, media_type, body) if media_type in ("", CURLS_DEFAULT) else media_type


def check_charset(content_type: str) -> None:
    """Reject a text that is not in UTF-8.

    Raises:
        UnsupportedMediaType: with its charset.
    """
    for each in content_type.lower().split(";")[1:]:
        name, _, value = each.partition("=")
        if name.strip() == "charset" and value.strip(' \t"') not in UTF_8:
            raise UnsupportedMediaType(
                f"{TEXT} must be in UTF-8, got charset={value.strip()[:MAX_SHOWN]!r}"
            )


def _guessed(codec: Codec, media_type: str, body: bytes) -> str:
    """The media type of a body whose client named none, by its first bytes.

    Raises:
        UnsupportedMediaType: if curl's default type was sent and the body is neither JSON nor a
            known file.
    """
    found = sniffed(body)
    if found is not None:
        return found
    if media_type == "" or _begins_like_json(body[:MAX_BLANKS]):
        return JSON
    takes = ", ".join((JSON, *codec.media_types))
    raise UnsupportedMediaType(
        f"the Content-Type is {CURLS_DEFAULT}, curl's default, and the body is neither JSON nor a "
        f"{KNOWN} file; set its type, as in -H 'Content-Type: {JSON}', or send a file with "
        f"-F file=@photo.jpg or --data-binary @photo.jpg. This model accepts {takes}"
    )


def parsed_json(body: bytes, hint: str = "", *, nan: bool = False, what: str = "the body") -> Any:
    """The value of a JSON body, without a byte order mark.

    Args:
        body: the body, or a part of it.
        hint: what to send instead, for the error.
        nan: whether the word NaN, which Python writes although it is not valid JSON, is read as
            null.
        what: what it is, for the error.

    Raises:
        InvalidInput: if it is malformed, or not in UTF-8.
    """
    try:
        text = strip_byte_order_mark(body)
        return orjson.loads(nan_as_null(text) if nan else text)
    except ValueError as error:
        raise InvalidInput(f"{what} is not JSON: {error}{hint}") from error


def _begins_like_json(beginning: bytes) -> bool:
    try:
        return strip_byte_order_mark(beginning).lstrip()[:1] in (b"{", b"[")
    except NotUtf8Error:
        return False


def _items_of_files(
    codec: Codec,
    files: Sequence[File],
    budget: Budget,
    *,
    many: bool,
    invalid: dict[int, InvalidItem] | None,
) -> list[Item]:
    items = []
    for index, file in enumerate(files):
        try:
            items += _item_of_file(codec, file, budget)
        except (InvalidInput, UnsupportedMediaType) as error:
            if invalid is not None:
                budget.error()
                invalid[index] = InvalidItem(str(error), error.details)
            elif not many:
                raise
            else:
                raise at_index(index, error) from error
    return items


def _item_of_file(codec: Codec, file: File, budget: Budget) -> list[Item]:
    media_type, given = sniffed(file.data), media_type_in(file.content_type)
    # Numbers may begin like a file that the model does not accept, or like one that it does.
    is_either = (
        given == OCTET_STREAM and codec.files is not None and media_type in codec.files.types
    )
    if media_type not in codec.media_types or is_either:
        media_type = given or media_type
        if media_type == TEXT:
            check_charset(file.content_type)
    if not media_type:
        raise UnsupportedMediaType(
            f"the part is not a {KNOWN} file, and it has no Content-Type; this model "
            f"accepts files of {', '.join(codec.media_types)}"
        )
    if media_type == JSON:
        raise UnsupportedMediaType(
            f"a form may hold only files; send JSON as the body, with -H 'Content-Type: {JSON}'"
        )
    return codec.decode_raw(media_type, file.data, max_items=None, budget=budget)


def _item_of_parts(
    codec: Codec, content_type: str, body: bytes, budget: Budget, *, many: bool
) -> Item:
    """The item of a form with a file and the other inputs, each as JSON in a part of its name."""
    names = codec.parts
    if many:
        raise UnsupportedMediaType(
            f"a form with the parts {', '.join(names)} is one item; send several items as JSON"
        )
    value: dict[str, object] = {}
    for name, part in read_parts(content_type, body, names, codec.optional).items():
        if name == names[0]:
            value[name] = part.data
            continue
        check_marks(part.data, codec, 1, budget)
        what = f"part {name!r} of the form"
        value[name] = parsed_json(part.data, nan=codec.takes_nan, what=what)
    return codec.decode(value, budget)


def check_marks(body: bytes, codec: Marks, items: int, budget: Budget, more: int = 4) -> None:
    """Reject a body with far more lists or numbers than any valid one, before it is parsed.

    Lists are also counted separately: a picture has a thousand numbers per list, and building as
    many empty lists as it has numbers would take far longer. Marks in strings count only while the
    total is within the limits.

    Args:
        body: as received.
        codec: knows the maximum number of marks and lists of an item.
        items: maximum number of items.
        budget: the request's budget.
        more: marks around the items.

    Raises:
        PayloadTooLarge: with both numbers.
        TooLongForLoop: on the event loop, if the strings must be located.
    """
    if len(body) <= MAX_UNCOUNTED_BYTES:
        return
    most = (codec.most_lists + 1) * items + more, (codec.most_marks + 2) * items + more
    if _are_within(_marks(body), most):
        return
    budget.read(len(body))
    lists, marks = counted = _marks(without_strings(body))
    if _are_within(counted, most):
        return
    if lists > most[0]:
        raise PayloadTooLarge(
            f"the body has {lists} lists and objects; the largest valid body for this model has "
            f"{most[0]}"
        )
    raise PayloadTooLarge(
        f"the body has {marks} commas and opening brackets; the largest valid body for this model "
        f"has {most[1]}"
    )


def _marks(body: bytes) -> tuple[int, int]:
    """The number of opening brackets in a body, and of opening brackets and commas."""
    opened = body.count(b"[") + body.count(b"{")
    return opened, opened + body.count(b",")


def _are_within(counted: tuple[int, int], most: tuple[int, int]) -> bool:
    return counted[0] <= most[0] and counted[1] <= most[1]


def without_strings(body: bytes) -> bytes:
    """JSON without the contents of its strings; works in pieces, each of which holds the GIL."""
    kept = []
    at, inside = 0, 0
    while at < len(body):
        piece = body[at : at + SCAN_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the escaped octet is in the next piece
            piece = piece[:-1] or piece
        at += len(piece)
        octets = np.frombuffer(piece.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        quotes = np.add.accumulate(np.equal(octets, QUOTE), dtype=np.uint8)  # only odd or even
        kept.append(octets[(quotes + np.uint8(inside)) & 1 == 0].tobytes())
        inside ^= int(quotes[-1]) & 1 if quotes.size else 0
    return b"".join(kept)


def _values(codec: Codec, body: bytes, *, many: bool) -> list[object]:
    right, other, route = (
        ("inputs", "input", "/predict") if many else ("input", "inputs", "/batch-predict")
    )
    shape = SHAPES[many]
    payload = parsed_json(body, f"; send {shape}", nan=codec.takes_nan)
    if not isinstance(payload, dict) or set(payload) != {right}:
        hint = ""
        if isinstance(payload, dict):
            is_other = set(payload) == {other}
            hint = f"; {route} accepts the other form" if is_other else _hint(codec, payload, right)
        raise InvalidInput(f"the body must be {shape} and nothing else{hint}")
    value = payload[right]
    if not many:
        return [value]
    if not isinstance(value, list) or not value:
        raise InvalidInput(f"'inputs' must be a list of at least one item: {shape}")
    return value


def _hint(codec: Codec, payload: dict[str, object], right: str) -> str:
    """What is probably wrong with an object that does not have the right key alone."""
    inputs = [spec.name for spec in codec.manifest.inputs]
    if payload and set(payload) <= set(inputs):
        return f"; X is an object with {listed(inputs)}" if len(inputs) > 1 else ""
    surplus = [key for key in payload if key != right]
    return f"; it also has {listed(surplus)}" if right in payload else ""


def _decode_at(codec: Codec, index: int, value: object, budget: Budget) -> Item:
    try:
        return codec.decode(value, budget)
    except InvalidInput as error:
        raise at_index(index, error) from error
