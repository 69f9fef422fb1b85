"""The URL of the server under load, in the forms in which users write it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from loadtests.errors import UsageError


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """The parts of a server's URL.

    Attributes:
        netloc: host and port as given.
        host: without the brackets of IPv6.
        prefix: of all paths, without a slash at its end; mostly empty.
    """

    scheme: str
    netloc: str
    host: str
    port: int | None
    prefix: str

    def __str__(self) -> str:
        """Format as a URL without a slash at its end, so that a path can be appended."""
        return f"{self.scheme}://{self.netloc}{self.prefix}"

    @classmethod
    def parse(cls, text: str) -> ServerUrl:
        """Parse a URL such as http://127.0.0.1:8000, with or without a slash at its end.

        Raises:
            UsageError: if it is not the address of a server; the message never has a password.
        """
        problem = f"{text!r} is not an address like http://127.0.0.1:8000"
        if "@" in text:
            raise UsageError("the server's address must not have a user and password")
        try:
            parts = urlsplit(text.strip())
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"{problem}: {error}") from error
        if parts.scheme not in ("http", "https") or not host or port == 0:
            raise UsageError(f"{problem}: it needs http:// or https://, and a host")
        if parts.query or parts.fragment:
            raise UsageError(f"{problem}: it must end before '?' and '#'")
        return cls(parts.scheme, parts.netloc, host, port, parts.path.rstrip("/"))
