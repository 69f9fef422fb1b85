"""Files as base64 text, as command-line tools, mail programs and browsers write it."""

from __future__ import annotations

import binascii
import re

LINE_ENDS = b"\r\n"  # not blanks: each may have been a + that something decoded as in a form
SCHEME = "data:"
ESCAPED = {b"%2B": b"+", b"%2F": b"/", b"%3D": b"="}  # other characters need no escape
DATA_URL = re.compile(r"[^,]{0,1000};base64,", re.IGNORECASE)


def decoded(text: str) -> bytes:
    """The bytes of standard base64 (RFC 4648, section 4), or of a data: URL (RFC 2397).

    Line ends do not count: `base64` and MIME write one after every 76 characters.

    Raises:
        ValueError: if it is something else; the message says what.
    """
    data = text.encode("ascii", "replace")
    if text[: len(SCHEME)].lower() == SCHEME:
        head = DATA_URL.match(text, len(SCHEME))
        if head is None:
            raise ValueError("this data: URL has no `;base64,` in front of its data")
        data = _unescaped(data[head.end() :])
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except binascii.Error:
        pass  # it may have line ends
    try:
        return binascii.a2b_base64(data.translate(None, LINE_ENDS), strict_mode=True)
    except binascii.Error as error:
        why = str(error).lower()
        if b"-" in data or b"_" in data:
            why = "it has - or _, as base64url has; send + and / in their place"
        elif b" " in data:
            why = "it has blanks; if they were +, encode the text once more"
        raise ValueError(f"this one is not base64: {why}") from error


def _unescaped(data: bytes) -> bytes:
    if b"%" in data:
        for escaped, character in ESCAPED.items():
            data = data.replace(escaped, character).replace(escaped.lower(), character)
    return data
