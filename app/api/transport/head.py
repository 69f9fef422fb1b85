"""Rules of RFC 9110 and 9112 for a request's head that the parser leaves to the server.

tests/http/README.md lists all rules and what enforces them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from app.api.origins import AUTHORITY
from app.errors import CallerError, HttpVersionNotSupported, MalformedRequest, NotImplementedInHttp

NOT_HTTP = "malformed HTTP/1.1 request; the connection is closed"
HTTP_1 = "this server speaks HTTP/1.1; the connection is closed"
ONE_HOST = "a request needs exactly one valid Host header; the connection is closed"
ABSOLUTE_FORM = re.compile(rb"https?://([^/?#@]+)([/?][^#]*)?", re.IGNORECASE)
# The parser also accepts requests of these protocols, and does not say so.
OTHER_PROTOCOL = re.compile(rb"[^\r\n]* (?:RTSP|ICE)/")
TAIL_BYTES = 16  # of an incomplete line: enough to recognise its protocol
OTHER_VERSIONS = ("Invalid HTTP version", "Pause on PRI/Upgrade")  # the parser's messages


def unreadable(problem: str) -> CallerError:
    """The error for data that the parser could not read, given its message."""
    if problem in OTHER_VERSIONS:
        return HttpVersionNotSupported(HTTP_1)
    return MalformedRequest(NOT_HTTP)


def line_tail(before: bytes, data: bytes | memoryview) -> bytes:
    """Check a request line, as far as it has arrived, for other protocols than HTTP.

    Args:
        before: what this last returned for the line; empty for a new request.
        data: the bytes that follow.

    Returns:
        The end of the line, to be checked with the next bytes; empty if the line is complete.

    Raises:
        MalformedRequest: if it is not HTTP.
    """
    line = b"".join((before, data)) if before else bytes(data)  # bytes are not copied
    line = line.lstrip(b"\r\n")
    if b"\n" in line and b"RTSP/" not in line and b"ICE/" not in line:
        return b""
    if OTHER_PROTOCOL.match(line) is not None:
        raise MalformedRequest(NOT_HTTP)
    return b"" if b"\n" in line else line[-TAIL_BYTES:]


def check_head(
    version: str, headers: Sequence[tuple[bytes, bytes]], fields: Mapping[bytes, bytes]
) -> None:
    """Check version, Host and Transfer-Encoding (RFC 9112, sections 2.3, 3.2, 6.1 and 6.3).

    Args:
        version: HTTP version, as the parser reports it.
        headers: headers, with names in lower case.
        fields: the last value of each name.

    Raises:
        HttpVersionNotSupported, MalformedRequest, NotImplementedInHttp: if the head is invalid.
    """
    if version not in ("1.0", "1.1"):
        raise HttpVersionNotSupported(HTTP_1)
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise MalformedRequest(ONE_HOST)
    if hosts and hosts[0] and AUTHORITY.fullmatch(hosts[0].lower()) is None:
        raise MalformedRequest(ONE_HOST)
    if b"transfer-encoding" not in fields:
        return
    if version == "1.0":
        raise MalformedRequest("HTTP/1.0 has no Transfer-Encoding")
    given = b",".join(value for name, value in headers if name == b"transfer-encoding")
    codings = given.lower().split(b",")
    if codings[-1].strip() != b"chunked":  # the length is unknown
        raise MalformedRequest("the last Transfer-Encoding must be chunked")
    if len(codings) > 1:
        raise NotImplementedInHttp("only the Transfer-Encoding chunked is implemented")


def path_of(target: bytes, host: bytes) -> bytes:
    """Path and query of a request target that is a whole URL (RFC 9112, section 3.2).

    A Host header that differs is rejected, not ignored: a proxy in front may have used either one.

    Args:
        target: as it was sent.
        host: the Host header; empty if it is missing or names no host.

    Raises:
        MalformedRequest: for another form, a fragment, or another host.
    """
    match = ABSOLUTE_FORM.fullmatch(target)
    if match is None:
        raise MalformedRequest("the request target must be a path, without a fragment")
    if host and match[1].lower() != host.lower():
        raise MalformedRequest("the request target and the Host header name different hosts")
    path = match[2] or b""
    return path if path.startswith(b"/") else b"/" + path


def check_trailers(trailers: Sequence[tuple[bytes, bytes]]) -> None:
    """Reject a trailer that would make the parser close the connection.

    Raises:
        MalformedRequest: if there is such a trailer.
    """
    if any(name == b"connection" for name, _ in trailers):
        raise MalformedRequest("a trailer must not have a Connection field")


def without_upgrade(
    method: bytes, target: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]
) -> bytes:
    """A head for a new parser, without Upgrade headers (RFC 9110, section 7.8).

    The parser stops after a head that requests an upgrade, and cannot be made to read the body as
    usual.
    """
    parts = [method, b" ", target, b" HTTP/", version.encode(), b"\r\n"]
    for name, value in headers:
        if name != b"upgrade":
            parts += (name, b": ", value, b"\r\n")
    return b"".join((*parts, b"\r\n"))
