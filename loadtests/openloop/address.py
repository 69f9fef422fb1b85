"""The server's address, looked up once and not for every connection."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from loadtests.errors import LoadTestError, UsageError
from loadtests.server_url import ServerUrl

REACH_S = 10.0  # for the first connection


class Unreachable(LoadTestError):
    """No server answers at the address; the message has the address and the reason."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of the server.

    Attributes:
        host: as in the URL, for the Host header.
        ip: address of the host; empty if it was not looked up.
    """

    host: str
    port: int
    ip: str = ""

    def __str__(self) -> str:
        """Format as HOST:PORT like in a URL, with IPv6 in brackets."""
        return _host_port(self.host, self.port)

    @property
    def peer(self) -> str:
        """IP:PORT of connections, written as in a URL."""
        return _host_port(self.ip or self.host, self.port)


def reach(url: str) -> ServerAddress:
    """Look up the host and port of http://HOST:PORT, and choose an address that answers.

    Raises:
        UsageError: if the URL has another form, such as https.
        Unreachable: if no server accepts a connection there.
    """
    parts = ServerUrl.parse(url)
    rule = f"--url must be http://HOST:PORT, not {url!r}"
    if parts.scheme != "http":
        raise UsageError(f"{rule}: with TLS, the generator would measure its own cryptography")
    if parts.prefix:
        raise UsageError(f"{rule}: without the path {parts.prefix}")
    host, port = parts.host, 80 if parts.port is None else parts.port
    try:
        with socket.create_connection((host, port), REACH_S) as connection:
            return ServerAddress(host, port, str(connection.getpeername()[0]))
    except (OSError, UnicodeError) as error:  # the latter for an invalid name
        raise Unreachable(
            f"cannot connect to {ServerAddress(host, port)}: {words_of(error)}; "
            "is the server running?"
        ) from error


def words_of(error: Exception) -> str:
    """Return the text of a system error, without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
