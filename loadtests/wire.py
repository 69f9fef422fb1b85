"""A minimal HTTP/1.1 parser for answers with Content-Length, one at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
CLOSES = b"\r\nconnection: close"
MAX_HEAD_BYTES = 65_536
MAX_BODY_BYTES = 64 * 1024 * 1024


class WireError(Exception):
    """The generator cannot read the bytes as an answer."""


@dataclass(frozen=True, slots=True)
class Response:
    """One answer.

    Attributes:
        body: with the length of its Content-Length.
        head: status line and header lines as received, without the empty line at the end.
    """

    status: int
    body: bytes
    head: bytes = field(default=b"", compare=False)

    def headers(self) -> dict[str, str]:
        """Header values by lower-case name; the last one of repeated names."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines)
        return {name.strip().lower(): value.strip() for name, _, value in pairs}

    @property
    def closes(self) -> bool:
        """Whether the server closes the connection after this answer."""
        return CLOSES in self.head.lower()


class ResponseParser:
    """Reads successive responses from the pieces that a socket delivers."""

    def __init__(self) -> None:
        self._received = bytearray()  # an incomplete response; grows without copies
        self._needed = 0  # size of the whole response; 0 until its head is complete

    def feed(self, data: bytes) -> Response | None:
        """Add received data; return the response once it is complete.

        Raises:
            WireError: for data that is not HTTP/1.1, a missing or too large Content-Length, or data
                after the response, which cannot follow with one request in flight.
        """
        received: bytes | bytearray = data
        if self._received:
            self._received += data
            if len(self._received) < self._needed:
                return None
            received = self._received
        head_size = received.find(HEAD_END)
        if head_size < 0:
            if len(received) > MAX_HEAD_BYTES:
                raise WireError(f"no end of the head within {MAX_HEAD_BYTES} bytes")
            self._wait(received, 0)
            return None
        head, body_at = bytes(received[:head_size]), head_size + len(HEAD_END)
        status, length = _head(head)
        excess = len(received) - body_at - length
        if excess > 0:
            raise WireError(f"{excess} bytes came after the response")
        if excess < 0:
            self._wait(received, body_at + length)
            return None
        self._received, self._needed = bytearray(), 0
        return Response(status, bytes(received[body_at:]), head)

    def _wait(self, received: bytes | bytearray, needed: int) -> None:
        if received is not self._received:
            self._received = bytearray(received)
        self._needed = needed


def _head(head: bytes) -> tuple[int, int]:
    """Parse status and Content-Length."""
    if not (head.startswith(b"HTTP/1.1 ") and head[9:12].isdigit()):
        raise WireError(f"not an HTTP/1.1 response: {head[:40]!r}")
    lowered = head.lower()
    at = lowered.find(LENGTH)
    if at < 0:
        raise WireError("a response without Content-Length, which the generator needs")
    value = lowered[at + len(LENGTH) :].partition(b"\r\n")[0].strip()
    if not value.isdigit():
        raise WireError(f"Content-Length is {value!r}")
    # count the digits first: Python refuses to parse thousands of them
    length = int(value) if len(value) <= len(str(MAX_BODY_BYTES)) else MAX_BODY_BYTES + 1
    if length > MAX_BODY_BYTES:
        raise WireError(f"an answer of more than {MAX_BODY_BYTES >> 20} MiB")
    return int(head[9:12]), length
