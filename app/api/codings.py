"""Content codings (RFC 9110, section 8.4): gzip and deflate of bodies, gzip of large answers.

A few bytes can inflate a thousandfold. A body's limit is enforced while it inflates, and large
bodies inflate in a thread.
"""

from __future__ import annotations

import zlib

from app.api.errors import ACCEPTED_CODINGS
from app.errors import InvalidInput, PayloadTooLarge, UnsupportedContentCoding

WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}  # with a header and a checksum
IDENTITY = (b"", b"identity")
MAX_SHOWN_BYTES = 50
FASTEST = 1  # level of compression
# Limits on the event loop, coded and inflated: a third of a millisecond, 1.6 ms in the worst case.
MAX_CODED_ON_LOOP_BYTES, MAX_ON_LOOP_BYTES = 32 << 10, 128 << 10
# A body may inflate to 32 times its size, or to a mebibyte. Without this bound, a few bytes could
# make the event loop parse the largest allowed JSON body.
MAX_RATIO, FREE_BYTES = 32, 1 << 20
MAX_MEMBERS = 10_000  # of a gzip file
INFLATE_BYTES = 64 << 10  # coded bytes per call of the decompressor


def read_coding(header: bytes) -> bytes | None:
    """The coding that a Content-Encoding header names; None if the body is not coded.

    Raises:
        UnsupportedContentCoding: if the coding is not gzip or deflate, or there are several.
    """
    coding = header.strip().lower()
    if coding in IDENTITY:
        return None
    if coding not in WINDOW_BITS:
        given = header[:MAX_SHOWN_BYTES].decode("latin-1")
        raise UnsupportedContentCoding(
            f"the Content-Encoding is {given!r}; send the body uncoded, or with one of "
            f"{ACCEPTED_CODINGS}"
        )
    return coding


def gzipped(content: bytes) -> bytes:
    """An answer in gzip, as fast as possible; releases the GIL.

    JSON of floats shrinks to a half at 70 MB/s; the usual level is six times slower.
    """
    return zlib.compress(content, FASTEST, WINDOW_BITS[b"gzip"])


class Inflater:
    """Decodes a compressed request body.

    Args:
        coding: see `read_coding`.
        body: the whole body, as received.
        most: maximum size of any body in bytes.

    Attributes:
        limit: maximum size of the result in bytes.
    """

    def __init__(self, coding: bytes, body: bytes, most: int) -> None:
        self.limit = min(most, max(FREE_BYTES, MAX_RATIO * len(body)))
        self._bits = WINDOW_BITS[coding]
        self._coding = coding.decode("ascii")
        self._zlib = zlib.decompressobj(self._bits)
        self._body = memoryview(body)
        self._at = 0
        self._members = 1
        self._pieces: list[bytes] = []
        self._size = 0

    def inflate_shortly(self) -> bytes | None:
        """The whole result; None if it would take long, and `inflate` must finish it.

        Raises:
            PayloadTooLarge, InvalidInput: see `inflate`.
        """
        if len(self._body) > MAX_CODED_ON_LOOP_BYTES or not self._inflate(MAX_ON_LOOP_BYTES):
            return None
        return b"".join(self._pieces)

    def inflate(self) -> bytes:
        """The whole result.

        Raises:
            PayloadTooLarge: if the result has more bytes than the limit.
            InvalidInput: if the body is damaged, cut off, or followed by other bytes.
        """
        self._inflate(self.limit + 1)
        return b"".join(self._pieces)

    def _inflate(self, most: int) -> bool:
        """Inflate up to `most` bytes; return whether the result is complete."""
        while not (self._zlib.eof and self._at == len(self._body)):
            if self._zlib.eof:
                self._next_member()
            if self._size >= most:
                return False
            piece = self._body[self._at : self._at + INFLATE_BYTES]
            try:
                inflated = self._zlib.decompress(piece, most - self._size)
            except zlib.error as error:
                raise InvalidInput(
                    f"the body is not valid {self._coding}, as its Content-Encoding says: {error}"
                ) from error
            left = len(self._zlib.unconsumed_tail) + len(self._zlib.unused_data)
            self._at += len(piece) - left
            self._size += len(inflated)
            self._pieces.append(inflated)
            if self._size > self.limit:
                raise PayloadTooLarge(
                    f"the body inflates to more than {self.limit} bytes, the limit for "
                    f"{len(self._body)} bytes of {self._coding}; send it without Content-Encoding, "
                    "or split it"
                )
            if not piece and not inflated and not self._zlib.eof:
                raise InvalidInput(f"the body is cut off: its {self._coding} data has no end")
        return True

    def _next_member(self) -> None:
        """Begin the next part of a gzip file (RFC 1952, section 2.2)."""
        self._members += 1
        if self._coding == "deflate" or self._members > MAX_MEMBERS:
            raise InvalidInput(f"extra bytes follow the end of the {self._coding} data")
        self._zlib = zlib.decompressobj(self._bits)
