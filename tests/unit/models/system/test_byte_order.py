"""Byte order marks: of UTF-8 dropped, others named."""

from __future__ import annotations

import pytest

from models.system.byte_order import NotUtf8Error, strip_byte_order_mark

TEXT = "crème"


@pytest.mark.parametrize("data", [b"", b"\xef", b"\xef\xbb", b"a\xef\xbb\xbf", TEXT.encode()])
def test_other_text_is_unchanged(data: bytes) -> None:
    assert strip_byte_order_mark(data) is data


def test_one_mark_of_utf_8_is_dropped() -> None:
    assert strip_byte_order_mark(TEXT.encode("utf-8-sig")) == TEXT.encode()
    assert strip_byte_order_mark("\ufeff\ufeff".encode()) == "\ufeff".encode()


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
@pytest.mark.parametrize("order", ["le", "be"])
def test_another_encoding_is_named(encoding: str, order: str) -> None:
    data = f"\ufeff{TEXT}".encode(f"{encoding}-{order}")
    with pytest.raises(NotUtf8Error, match=f"mark of {encoding}; convert it to UTF-8"):
        strip_byte_order_mark(data)
