"""The framing between the server and the process of a handler: one socket pair, both ways.

A frame is a head of 16 bytes, its meta (a JSON object in UTF-8, or nothing) and its body (raw
bytes). The head has, little-endian: bytes of meta, bytes of body, number, kind, three zero bytes.

    server to handler: REQUEST CANCEL REPLY STOP TAKEN
    handler to server: READY ANSWER HELD CALL DROP ITEM

Each REQUEST gets one ANSWER, and each CALL one REPLY, even if it was cancelled or dropped: until
then its number is in use. The two sides number what they begin on their own.

A request with `stream` in its meta may get ITEMs before its ANSWER, which then has no body. Of
these, at most WINDOW items and WINDOW_BYTES, or one item, are not TAKEN.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from struct import Struct
from typing import Any, NamedTuple

from torchlane.handlers.plain import json_of

HEAD = Struct("<IIIB3s")
PADDING = bytes(3)
MAX_NUMBER = 0xFFFF_FFFF
MAX_META_BYTES = 256 << 10  # of a query with many parameters
TO_HANDLER_BYTES = 256 << 20  # of a body: replies with large outputs in JSON
FROM_HANDLER_BYTES = 64 << 20

REQUEST = 1  # a caller's request; `more` in its meta: the next one belongs to the same batch
CANCEL = 2  # the request of this number need not be answered
REPLY = 3  # to the call of this number
STOP = 4  # end the process
READY = 5  # the handler is set up; `error` in its meta: it is not, and the process ends
ANSWER = 6  # to the request of this number
HELD = 7  # the request of this number was cancelled, but its code still runs, in a thread or task
CALL = 8  # of a model
DROP = 9  # the reply to the call of this number is not needed
ITEM = 10  # of the stream that answers the request of this number
TAKEN = 11  # the oldest item of the stream of this number that was not
TO_HANDLER = frozenset((REQUEST, CANCEL, REPLY, STOP, TAKEN))
FROM_HANDLER = frozenset((READY, ANSWER, HELD, CALL, DROP, ITEM))
WINDOW, WINDOW_BYTES = 16, 256 << 10


def fits(ahead: Collection[int], size: int) -> bool:
    """Whether a stream may have one more item.

    Args:
        ahead: bytes of each item that was not taken.
        size: bytes of the item.
    """
    return not ahead or (len(ahead) < WINDOW and sum(ahead) + size <= WINDOW_BYTES)


class MalformedFrame(Exception):
    """The other side sent what is not a frame, or not one that it may send."""


class Frame(NamedTuple):
    """A frame as it was read.

    Attributes:
        kind: one of the constants of this module.
        number: of the request or call; 0 if it belongs to none.
        meta: its fields.
        body: raw bytes.
    """

    kind: int
    number: int
    meta: Mapping[str, Any]
    body: bytes


def meta_of(fields: Mapping[str, Any]) -> bytes:
    """Fields as the meta of a frame.

    Raises:
        TypeError, ValueError: JSON has no form for them, or they are too large.
    """
    meta = json_of(fields) if fields else b""
    if len(meta) > MAX_META_BYTES:
        raise ValueError(f"its fields have {len(meta)} bytes, the limit is {MAX_META_BYTES}")
    return meta


def head(kind: int, number: int, meta: bytes = b"", body_bytes: int = 0) -> bytes:
    """A frame without its body.

    Args:
        kind: of the frame.
        number: of the request or call.
        meta: a JSON object, or nothing.
        body_bytes: length of the body that follows.
    """
    return HEAD.pack(len(meta), body_bytes, number, kind, PADDING) + meta


def next_number(number: int) -> int:
    """The number after this one; never 0."""
    return 1 if number >= MAX_NUMBER else number + 1


class Decoder:
    """Cuts what arrives into frames; checks limits before it keeps anything.

    Args:
        kinds: that the other side may send.
        max_body_bytes: of a frame.
        loads: reads JSON; raises ValueError if it is none.
    """

    def __init__(
        self,
        kinds: frozenset[int],
        max_body_bytes: int,
        loads: Callable[[bytes], Any] = json.loads,
    ) -> None:
        self._kinds = kinds
        self._max_body_bytes = max_body_bytes
        self._loads = loads
        self._held = bytearray()  # the beginning of a frame
        self._needed = HEAD.size  # bytes of it before it can be read on

    def feed(self, received: bytes) -> Iterator[Frame]:
        """The frames that are complete now; must be iterated to the end.

        Raises:
            MalformedFrame: this is not of the protocol; the connection cannot be used any more.
        """
        data: bytes | bytearray = received
        if self._held:
            self._held += received
            if len(self._held) < self._needed:
                return
            data, self._held = self._held, bytearray()
        view = memoryview(data)
        at, end = 0, len(data)
        self._needed = HEAD.size
        while end - at >= HEAD.size:
            meta_bytes, body_bytes, number, kind, padding = HEAD.unpack_from(view, at)
            if kind not in self._kinds or padding != PADDING:
                raise MalformedFrame(f"a frame of the unknown kind {kind}")
            if meta_bytes > MAX_META_BYTES or body_bytes > self._max_body_bytes:
                raise MalformedFrame(
                    f"a frame of {meta_bytes} bytes of meta and {body_bytes} of body, the limits "
                    f"are {MAX_META_BYTES} and {self._max_body_bytes}"
                )
            body_at = at + HEAD.size + meta_bytes
            if body_at + body_bytes > end:
                self._needed = HEAD.size + meta_bytes + body_bytes
                break
            meta = self._meta(bytes(view[at + HEAD.size : body_at])) if meta_bytes else {}
            at = body_at + body_bytes
            yield Frame(kind, number, meta, bytes(view[body_at:at]))
        self._held += view[at:]

    def _meta(self, text: bytes) -> dict[str, Any]:
        try:
            meta = self._loads(text)
        except (ValueError, RecursionError) as error:
            raise MalformedFrame(f"a frame's meta is not JSON: {str(error)[:200]}") from error
        if not isinstance(meta, dict):
            raise MalformedFrame("a frame's meta is not a JSON object")
        return meta
