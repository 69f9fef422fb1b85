"""Skips parsing a request head that repeats on its connection; only its Content-Length may differ.

Clients that keep a connection send the same head with each request. The first result of the parser
and of the rules of `head.py` holds for the same bytes again. Nothing here reads HTTP: all other
bytes go to the parser.
"""

from __future__ import annotations

from app.api.endpoints import Endpoint
from app.api.negotiation import fields_of

LENGTH = b"content-length"
LINE = b"\r\ncontent-length:"
END = b"\r\n\r\n"
MAX_DIGITS = 18
MAX_BYTES = 4096  # of a head; each connection keeps one head


class KnownHead:
    """The head of a whole request that took the fast path.

    Args:
        url: the request's URL.
        headers: headers, with names in lower case.
        endpoint: the endpoint that the URL names.
        length_at: index in `headers` of the body's length.
        before: the bytes of the head before that number.
        behind: the bytes of the head after it.

    Attributes:
        fields: the headers by name, with the length of the last body that `body_of` found.
    """

    __slots__ = ("_before", "_behind", "_length_at", "endpoint", "fields", "headers", "url")

    def __init__(
        self,
        url: bytes,
        headers: list[tuple[bytes, bytes]],
        endpoint: Endpoint,
        length_at: int,
        before: bytes,
        behind: bytes,
    ) -> None:
        self.url = url
        self.headers = headers
        self.fields = fields_of(headers)
        self.endpoint = endpoint
        self._length_at = length_at
        self._before = before
        self._behind = behind

    def body_of(self, data: bytes) -> bytes | None:
        """The body, if these bytes are this head and one whole body; otherwise None."""
        start = len(self._before)
        if not data.startswith(self._before):
            return None
        end = data.find(self._behind, start, start + MAX_DIGITS + len(self._behind))
        if end < 0:
            return None
        digits = data[start:end]
        body_at = end + len(self._behind)
        if not digits.isdigit() or len(data) - body_at != int(digits):
            return None
        self.fields[LENGTH] = digits
        self.headers[self._length_at] = (LENGTH, digits)
        return data[body_at:]


def known_head(
    data: bytes, url: bytes, headers: list[tuple[bytes, bytes]], endpoint: Endpoint
) -> KnownHead | None:
    """A head to remember; None if it must be parsed every time.

    Args:
        data: bytes from one read, in which the parser found only complete requests.
        url: URL of the last of these requests, as are the other arguments.
        headers: headers, with names in lower case.
        endpoint: the endpoint that the URL names.
    """
    end = data.find(END) + len(END)
    lengths = [at for at, (name, _) in enumerate(headers) if name == LENGTH]
    if not len(END) <= end <= MAX_BYTES or len(lengths) != 1:
        return None
    digits = headers[lengths[0]][1]
    if not digits.isdigit() or len(digits) > MAX_DIGITS or len(data) - end != int(digits):
        return None  # more than one request
    head = data[:end]
    lowered = head.lower()
    line = lowered.find(LINE)
    start = head.find(digits, line + len(LINE))
    # Upgrade: the parser saw another head. Trailers and chunks: the length is meaningless.
    if line < 0 or head[line + len(LINE) : start].strip(b" \t") or b"upgrade" in lowered:
        return None
    if any(name == b"transfer-encoding" for name, _ in headers):
        return None
    return KnownHead(url, headers, endpoint, lengths[0], head[:start], head[start + len(digits) :])
