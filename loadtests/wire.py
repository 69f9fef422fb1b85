"""Just enough HTTP/1.1 to read the answers of a server that sends Content-Length, one at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
CLOSES = b"\r\nconnection: close"
MAX_HEAD_BYTES = 65_536


class WireError(Exception):
    """The bytes are not an answer that the generator can read."""


@dataclass(frozen=True, slots=True)
class Response:
    """One answer.

    Attributes:
        body: as long as its Content-Length said.
        head: status line and header lines as they came, without the empty line at the end.
    """

    status: int
    body: bytes
    head: bytes = field(default=b"", compare=False)

    def headers(self) -> dict[str, str]:
        """Header values by lower-case name; of a name that comes twice, the last."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines)
        return {name.strip().lower(): value.strip() for name, _, value in pairs}

    @property
    def closes(self) -> bool:
        """Whether the server closes the connection after it."""
        return CLOSES in self.head.lower()


class ResponseParser:
    """Reads one response after the other from the pieces that a socket gives."""

    def __init__(self) -> None:
        self._received = b""

    def feed(self, data: bytes) -> Response | None:
        """Take what has arrived; the response, once it is complete.

        Raises:
            WireError: at what is not HTTP/1.1, has no Content-Length, or goes on after the
                response: with one request in the air nothing may follow.
        """
        received = self._received + data if self._received else data
        head_size = received.find(HEAD_END)
        if head_size < 0:
            if len(received) > MAX_HEAD_BYTES:
                raise WireError(f"no end of the head within {MAX_HEAD_BYTES} bytes")
            self._received = received
            return None
        body_at = head_size + len(HEAD_END)
        status, length = _head(received[:head_size])
        excess = len(received) - body_at - length
        if excess > 0:
            raise WireError(f"{excess} bytes came after the response")
        if excess < 0:
            self._received = received
            return None
        self._received = b""
        return Response(status, received[body_at:], received[:head_size])


def _head(head: bytes) -> tuple[int, int]:
    """Status and Content-Length."""
    if not (head.startswith(b"HTTP/1.1 ") and head[9:12].isdigit()):
        raise WireError(f"not an HTTP/1.1 response: {head[:40]!r}")
    lowered = head.lower()
    at = lowered.find(LENGTH)
    if at < 0:
        raise WireError("a response without Content-Length; the generator reads no other")
    value = lowered[at + len(LENGTH) :].partition(b"\r\n")[0].strip()
    if not value.isdigit():
        raise WireError(f"Content-Length is {value!r}")
    return int(head[9:12]), int(value)
