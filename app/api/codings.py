"""Content codings of request bodies (RFC 9110, section 8.4): gzip and deflate.

A few bytes can inflate a thousandfold. The result is bounded by the limit of a body while it
inflates, and large ones are left to a thread.
"""

from __future__ import annotations

import zlib

from app.api.errors import ACCEPTED_CODINGS
from app.api.payloads import check_length
from app.errors import InvalidInput, UnsupportedContentCoding

WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}  # with a header and a checksum
IDENTITY = (b"", b"identity")
MAX_SHOWN_BYTES = 50
MAX_ON_LOOP_BYTES = 128 << 10  # to inflate on the event loop: a quarter of a millisecond


def read_coding(header: bytes) -> bytes | None:
    """The coding that a Content-Encoding header names; None: the body comes as it is.

    Raises:
        UnsupportedContentCoding: another coding than gzip and deflate, or several.
    """
    coding = header.strip().lower()
    if coding in IDENTITY:
        return None
    if coding not in WINDOW_BITS:
        given = header[:MAX_SHOWN_BYTES].decode("latin-1")
        raise UnsupportedContentCoding(
            f"the Content-Encoding is {given!r}; send the body as it is, or coded by one of "
            f"{ACCEPTED_CODINGS}"
        )
    return coding


class Inflater:
    """A body that leaves its coding.

    Args:
        coding: see `read_coding`.
        body: as it came, whole.
        limit: bytes that the result may have.
    """

    def __init__(self, coding: bytes, body: bytes, limit: int) -> None:
        self._coding = coding.decode("ascii")
        self._zlib = zlib.decompressobj(WINDOW_BITS[coding])
        self._rest = body
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def inflate(self, most: int | None = None) -> bytes | None:
        """The whole result; None: it has more than `most` bytes, and the next call goes on.

        Raises:
            PayloadTooLarge: it has more bytes than the limit.
            InvalidInput: the body is damaged, cut off, or followed by other bytes.
        """
        most = self._limit + 1 if most is None else min(most, self._limit + 1)
        while not self._zlib.eof:
            room = most - self._size
            if room <= 0:
                return None
            try:
                piece = self._zlib.decompress(self._rest, room)
            except zlib.error as error:
                raise InvalidInput(
                    f"the body is not valid {self._coding}, its Content-Encoding: {error}"
                ) from error
            self._rest = self._zlib.unconsumed_tail
            self._size += len(piece)
            check_length(self._size, self._limit)
            self._pieces.append(piece)
            if not self._zlib.eof and not self._rest and len(piece) < room:
                raise InvalidInput(f"the body is cut off: its {self._coding} data has no end")
        if self._zlib.unused_data:
            raise InvalidInput(f"the body goes on behind the end of its {self._coding} data")
        return b"".join(self._pieces)
