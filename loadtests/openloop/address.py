"""Where the server is: looked up once, not for every connection."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from loadtests.errors import LoadTestError, UsageError

REACH_S = 10.0  # for the first connection


class Unreachable(LoadTestError):
    """No server answers at the address; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens.

    Attributes:
        host: as the URL names it; what the Host header says.
        port: of TCP.
        ip: what the name stands for; empty where it was not looked up.
    """

    host: str
    port: int
    ip: str = ""

    def __str__(self) -> str:
        """HOST:PORT as in a URL: IPv6 in brackets."""
        return _joined(self.host, self.port)

    @property
    def peer(self) -> str:
        """IP:PORT that connections go to, written like a URL's."""
        return _joined(self.ip or self.host, self.port)


def reach(url: str) -> Address:
    """Host and port of http://HOST:PORT, looked up: the one of its addresses that answers.

    Raises:
        UsageError: if it is something else; TLS would measure the generator's cryptography.
        Unreachable: if no server takes a connection there.
    """
    wanted = "--url has to be http://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{wanted}, not {url!r}: {error}") from error
    if "@" in parts.netloc:  # not shown: it may hold a password
        raise UsageError(f"{wanted}, without user and password: they would not be sent")
    more = parts.path not in ("", "/") or parts.query or parts.fragment
    if parts.scheme != "http" or not parts.hostname or port == 0 or more:
        raise UsageError(f"{wanted}, not {url!r}")
    host, port = parts.hostname, 80 if port is None else port
    try:
        with socket.create_connection((host, port), REACH_S) as connection:
            return Address(host, port, str(connection.getpeername()[0]))
    except (OSError, UnicodeError) as error:  # the latter of a name that is none
        raise Unreachable(
            f"cannot connect to {Address(host, port)}: {words_of(error)}; is the server running?"
        ) from error


def words_of(error: Exception) -> str:
    """What an error of the system says, without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
