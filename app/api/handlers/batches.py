"""Bodies and answers of batch predictions by handlers: a body is cut, and not parsed."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence

import numpy as np
import orjson

from app.api.multipart import FORM, read_files
from app.codecs.base import JSON
from app.errors import InvalidInput, PayloadTooLarge, TorchlaneError
from app.handlers.contract import FIRST_ERROR, NO_CONTENT, HandlerAnswer
from app.types import ModelId
from models.system.byte_order import NotUtf8Error, strip_byte_order_mark

SCAN_BYTES = 256 << 10  # looked at together: takes a millisecond or two, with the GIL
ENCODED_BYTES = 192 << 10  # in base64 at once; a multiple of three
BEGINNING = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"inputs"[ \t\r\n]*:[ \t\r\n]*\[')
END = re.compile(rb"\][ \t\r\n]*\}[ \t\r\n]*")
BLANKS = b" \t\r\n"
QUOTE, COMMA = ord('"'), ord(",")
SHAPE = (
    'the body of a batch must be {"inputs": [...]} with at least one item, each of them what the '
    "body of predict would be"
)
Item = tuple[str, bytes]  # media type and body of a request of its own


def items_of(body: bytes, content_type: str, most: int) -> list[Item]:
    """The items of a batch, in order, each exactly as it was sent.

    Args:
        body: inflated.
        content_type: as the caller sent it.
        most: items.

    Raises:
        InvalidInput: if the body is neither JSON nor a form with files.
        PayloadTooLarge: if there are more than `most`.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == FORM:
        return [(each.content_type, each.data) for each in read_files(content_type, body, most)]
    if media_type not in ("", JSON):
        raise InvalidInput(
            'a batch for a handler is JSON, {"inputs": [...]}, or a form with files, got '
            f"{content_type[:80]!r}; send other bodies one by one to predict"
        )
    try:
        text = strip_byte_order_mark(body)
    except NotUtf8Error as error:
        raise InvalidInput(f"the body is not JSON: {error}") from error
    begins = BEGINNING.match(text)
    if begins is None:
        raise InvalidInput(SHAPE)
    items = []
    start = begins.end()
    for end in _ends(text, start):
        items.append((JSON, text[start:end].strip(BLANKS)))
        start = end + 1
        if len(items) > most:
            raise PayloadTooLarge(f"more than {most} items in one request; split it")
    if END.fullmatch(text, start - 1) is None or not all(item for _, item in items):
        raise InvalidInput(SHAPE)
    return items


def _ends(text: bytes, start: int) -> Iterator[int]:
    """The places where the elements of an array end, whose first one begins at `start`.

    The last place is that of the array's own end, or the end of a text in which it has none.
    """
    depth, inside, at = 0, 0, start
    while at < len(text):
        piece = text[at : at + SCAN_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the escaped octet is in the next piece
            piece = piece[:-1] or piece
        octets = np.frombuffer(piece.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
        quotes = np.add.accumulate(np.equal(octets, QUOTE), dtype=np.uint8)  # only odd or even
        is_text = (quotes + np.uint8(inside)) & 1
        lowered = octets | 32  # "[" and "{" become one, so do "]" and "}"
        opens, closes = lowered == ord("{"), lowered == ord("}")
        steps = np.where(is_text, 0, opens.astype(np.int8) - closes.astype(np.int8))
        depths = np.add.accumulate(steps, dtype=np.int64) + depth
        has_ended = np.flatnonzero(depths < 0)
        most = int(has_ended[0]) if has_ended.size else len(octets)
        commas = (octets[:most] == COMMA) & (is_text[:most] == 0) & (depths[:most] == 0)
        for each in np.flatnonzero(commas).tolist():
            yield at + each
        if has_ended.size:
            yield at + most
            return
        depth, inside = int(depths[-1]), inside ^ (int(quotes[-1]) & 1)
        at += len(piece)
    yield len(text)


def pieces_of(model: ModelId, places: Sequence[HandlerAnswer | TorchlaneError]) -> Iterator[bytes]:
    """The answer to a batch, in pieces that are quick to make.

    Args:
        model: name and version of the handler.
        places: the outcomes, in order.
    """
    yield b'{"model":%b,"version":%d,"predictions":' % (orjson.dumps(model.name), model.version)
    before = b"["
    for place in places:
        yield before
        yield from _place(place)
        before = b","
    yield b"]}"


def written_bytes(answer: HandlerAnswer) -> int:
    """About how long an answer will be as an item of a batch."""
    return len(answer.body) if _is_json(answer) else len(answer.body) * 4 // 3


def check_written(size: int, limit: int) -> None:
    """Reject an answer that is too large.

    Raises:
        PayloadTooLarge: with both numbers.
    """
    if size > limit:
        raise PayloadTooLarge(f"the handler's answer has {size} bytes, the limit is {limit}")


def _place(place: HandlerAnswer | TorchlaneError) -> Iterator[bytes]:
    """What an outcome is in a batch: its JSON, else its bytes in base64, or an error."""
    if isinstance(place, TorchlaneError):
        failure: dict[str, object] = {"error": str(place), "code": place.code}
        if place.details:
            failure["details"] = place.details
        yield orjson.dumps(failure)
    elif place.status >= FIRST_ERROR:
        text = place.body[:1000].decode("utf-8", "replace")
        error = f"the handler answered {place.status}: {text}"
        yield orjson.dumps({"error": error, "code": "handler_status"})
    elif place.status == NO_CONTENT:
        yield b"null"
    elif _is_json(place):
        yield place.body
    else:
        yield b'{"media_type":%b,"base64":"' % orjson.dumps(place.media_type)
        for at in range(0, len(place.body), ENCODED_BYTES):
            yield base64.b64encode(place.body[at : at + ENCODED_BYTES])
        yield b'"}'


def _is_json(answer: HandlerAnswer) -> bool:
    return answer.media_type.partition(";")[0].strip().lower() == JSON
