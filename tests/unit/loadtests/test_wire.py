"""The response parser: whatever the pieces, one whole response; anything else is refused."""

from __future__ import annotations

import pytest

from loadtests.wire import MAX_BODY_BYTES, MAX_HEAD_BYTES, Response, ResponseParser, WireError

WHOLE = b"HTTP/1.1 200 OK\r\ndate: now\r\nContent-Length: 5\r\nx-y: z\r\n\r\nhello"


def test_a_whole_response_in_one_piece() -> None:
    assert ResponseParser().feed(WHOLE) == Response(200, b"hello")


@pytest.mark.parametrize("cut", range(1, len(WHOLE)))
def test_a_response_in_two_pieces(cut: int) -> None:
    parser = ResponseParser()
    assert parser.feed(WHOLE[:cut]) is None
    assert parser.feed(WHOLE[cut:]) == Response(200, b"hello")


def test_a_large_response_in_many_pieces() -> None:
    """A parser that copies all of it at each piece would move 64 GB here."""
    pieces = [b"%07d " % number * 256 for number in range(8192)]
    parser, whole = ResponseParser(), b"".join(pieces)
    assert parser.feed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n" % len(whole)) is None
    assert parser.feed(b"\r\n") is None
    *others, last = pieces
    assert all(parser.feed(piece) is None for piece in others)
    assert parser.feed(last) == Response(200, whole)


def test_parser_reads_consecutive_responses() -> None:
    parser = ResponseParser()
    empty = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length:0\r\n\r\n"
    answers = [parser.feed(piece) for piece in (WHOLE[:9], WHOLE[9:], empty, WHOLE)]
    assert answers == [None, Response(200, b"hello"), Response(503, b""), Response(200, b"hello")]


def test_the_headers_of_a_response() -> None:
    response = ResponseParser().feed(WHOLE)
    assert response is not None
    assert response.headers() == {"date": "now", "content-length": "5", "x-y": "z"}
    assert not response.closes


def test_connection_close_header_is_read() -> None:
    response = ResponseParser().feed(WHOLE.replace(b"x-y: z", b"Connection: close"))
    assert response is not None
    assert response.closes


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (WHOLE + b"!", "1 bytes came after"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "without Content-Length"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\nhello", "b'five'"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), "than 64 MiB"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: %b\r\n\r\n" % (b"9" * 5000), "than 64 MiB"),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", "not an HTTP/1.1 response"),
        (b"HTTP/1.1 OK\r\ncontent-length: 0\r\n\r\n", "not an HTTP/1.1 response"),
        (b"x" * (MAX_HEAD_BYTES + 1), "no end of the head"),
    ],
)
def test_malformed_response_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        ResponseParser().feed(data)
