"""Request lines of other protocols, which the parser accepts as if they were HTTP."""

from __future__ import annotations

import pytest

from app.api.transport.head import line_tail
from app.errors import MalformedRequest

HEAD = b"Host: a\r\nX: /x RTSP/1.0\r\n\r\nbody ICE/1.0 \n RTSP/1.0\r\n"


def parsed(data: bytes, size: int) -> bytes:
    """The tail after data that arrives in pieces of a size."""
    tail = b""
    for at in range(0, len(data), size):
        tail = line_tail(tail, memoryview(data)[at : at + size])
        if not tail and data[:at].strip():
            break  # as the connection does: the line is complete
    return tail


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize("before", [b"", b"\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize(
    "line", [b"GET / RTSP/1.0", b"POST /predict  RTSP/1.1", b"SOURCE /a ICE/1.0", b"GET / RTSP/9"]
)
def test_other_protocols_are_rejected(line: bytes, before: bytes, size: int) -> None:
    with pytest.raises(MalformedRequest):
        parsed(before + line + b"\r\n" + HEAD, size)


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    "line", [b"GET / HTTP/1.1", b"POST /RTSP/1.0 HTTP/1.0", b"GET /?a=ICE/1 HTTP/1.1", b"nonsense"]
)
def test_what_follows_the_line_is_not_read(line: bytes, size: int) -> None:
    assert parsed(line + b"\r\n" + HEAD, size) == b""
