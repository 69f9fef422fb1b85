"""Byte order marks, which editors, shells and spreadsheets write in front of text."""

from __future__ import annotations

import codecs

OTHER_MARKS = (  # those of UTF-32 first: one begins with the mark of UTF-16
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
BEGINNINGS = (codecs.BOM_UTF8, *(mark for mark, _ in OTHER_MARKS))


class NotUtf8Error(ValueError):
    """The text begins with the mark of another encoding; the message names it."""


def strip_byte_order_mark(data: bytes) -> bytes:
    """Return UTF-8 text without its byte order mark; the rest is not checked.

    Raises:
        NotUtf8Error: if the text begins with the mark of UTF-16 or UTF-32.
    """
    if not data.startswith(BEGINNINGS):
        return data
    for mark, encoding in OTHER_MARKS:
        if data.startswith(mark):
            raise NotUtf8Error(
                f"it begins with the byte order mark of {encoding}; convert it to UTF-8"
            )
    return data.removeprefix(codecs.BOM_UTF8)
