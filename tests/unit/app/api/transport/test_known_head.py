"""Whatever a known head takes for a request, the parser takes for the same one."""

from __future__ import annotations

from collections.abc import Iterator

import httptools
import pytest

from app.api.endpoints import Endpoint
from app.api.transport.known_head import KnownHead, known_head
from tests.integration.wire import request

ENDPOINT = Endpoint("/predict", object)
BODY = b'{"input": [1, 2]}'
HEAD = (
    b"POST /predict?top_k=3 HTTP/1.1\r\nHost: loopback\r\nX-Content-Length: 17\r\n"
    b"Content-LENGTH:  %b\r\nAccept: */*\r\n\r\n"
)
FIRST = HEAD % b"17" + BODY
OCTETS = b"\r\n\t :0123456789aZ-,;\0\xb2\xff"


class Parsed:
    """What the parser makes of bytes; its attributes are those of one request."""

    def __init__(self, data: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.url = self.body = b""
        self.complete = 0
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1


def known(data: bytes) -> KnownHead | None:
    parsed = Parsed(data)
    return known_head(data, parsed.url, parsed.headers, ENDPOINT)


def mutations(data: bytes) -> Iterator[bytes]:
    """With an octet less, other or more, at each place."""
    for at in range(len(data)):
        yield data[:at] + data[at + 1 :]
        for octet in OCTETS:
            yield data[:at] + bytes((octet,)) + data[at + 1 :]
            yield data[:at] + bytes((octet,)) + data[at:]


def test_known_head_agrees_with_the_parser() -> None:
    head = known(FIRST)
    assert head is not None
    taken = 0
    for data in mutations(FIRST):
        body = head.body_of(data)
        if body is None:
            continue
        taken += 1
        parsed = Parsed(data)
        assert (parsed.complete, parsed.body) == (1, body)
        assert parsed.parser.should_keep_alive()
        assert (parsed.url, parsed.headers) == (head.url, head.headers)
        assert dict(parsed.headers) == head.fields
    assert taken > len(BODY) * len(OCTETS)  # the body's octets may be any


@pytest.mark.parametrize("size", [0, 1, 9, 10, 16, 18, 100, 70_000])
def test_known_head_allows_other_body_lengths(size: int) -> None:
    head = known(FIRST)
    assert head is not None
    body = b"x" * size
    assert head.body_of(HEAD % b"%d" % size + body) == body
    assert head.fields[b"content-length"] == b"%d" % size
    for wrong in (b"", b"+%d", b"-%d", b"%d_", b"%d,%d", b"%d.0", b"0x%d", b"%d" + b"0" * 18):
        value = wrong.replace(b"%d", b"%d" % size)
        assert head.body_of(HEAD % value + body) is None


@pytest.mark.parametrize(
    "data",
    [
        FIRST[:-1],
        FIRST.replace(b"17\r\nA", b"17 \r\nA"),
        FIRST + b"\r\n",
        FIRST * 2,
        b"\r\n" + FIRST + FIRST,
        request(chunk_bytes=4),
        request(x_long="x" * 5000),
        FIRST.replace(b"Accept: */*", b"Upgrade: h2c"),
        FIRST.replace(b"Accept: */*", b"Content-Type: a\r\nX: b") + b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_unsuitable_heads_are_not_kept(data: bytes) -> None:
    try:
        kept = known(data)
    except httptools.HttpParserUpgrade:
        headers = [(b"content-length", b"17")]
        kept = known_head(data, b"/predict", headers, ENDPOINT)
    assert kept is None
