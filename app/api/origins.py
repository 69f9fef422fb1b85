"""Whom answers may come to, and from where requests may come: hosts and origins, by their headers.

Of the ASGI way Starlette's CORSMiddleware takes care, preflights included; here is what an
answer the fast path needs, which must be the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from app.errors import UntrustedHost

Header = tuple[bytes, bytes]
ANY = "*"
HOST = re.compile(rb"(\[[0-9a-f:.]+\]|[^\[\]:/?#@\\\s]+)(?::[0-9]{1,5})?")
# Of the answer, beside those that any script may read.
EXPOSED = ("X-Request-Id", "X-Torchlane-Cache", "Server-Timing", "Retry-After")
ALLOWED = ("Authorization", "X-API-Key", "X-Request-Id", "X-Torchlane-Timeout-Ms")  # of a request
METHODS = ("GET", "POST")


class Hosts:
    """The names that this server goes by.

    A page that a browser shows may be given this server's address by its own name server: by the
    Host header alone can such a request be told from others.

    Args:
        patterns: such as `example.com`, `*.example.com`; `*`: any.

    Attributes:
        asks: whether any request is refused.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.asks = ANY not in patterns
        names = [each.lower().encode("latin-1") for each in patterns]
        self._names = frozenset(each for each in names if not each.startswith(b"*"))
        self._endings = tuple(each[1:] for each in names if each.startswith(b"*."))

    def check(self, headers: Iterable[Header]) -> None:
        """Refuse a request to another host.

        Raises:
            UntrustedHost: or to none.
        """
        if not self.asks:
            return
        given = next((value for name, value in headers if name == b"host"), b"")
        match = HOST.fullmatch(given.lower())
        if match is None or not (match[1] in self._names or match[1].endswith(self._endings)):
            raise UntrustedHost(
                "the Host header names none of this server's hosts; whoever runs it lists them "
                "in TORCHLANE_TRUSTED_HOSTS"
            )


class Origins:
    """The origins whose scripts may read answers.

    Args:
        allowed: such as `https://example.com`; `*`: any. None: nothing is said to browsers.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self.allowed = tuple(allowed)
        self._any = ANY in allowed
        self._origins = frozenset(each.encode("latin-1") for each in allowed)
        self._exposed = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())

    def headers(self, request: Iterable[Header]) -> list[Header]:
        """What an answer to a request with these headers says to a browser."""
        if not self.allowed:
            return []
        origin = next((value for name, value in request if name == b"origin"), None)
        if origin is None:
            return [(b"vary", b"Origin")]
        if self._any:
            allowed = b"*"
        elif origin in self._origins:
            allowed = origin
        else:
            return [self._exposed, (b"vary", b"Origin")]
        return [
            (b"access-control-allow-origin", allowed),
            self._exposed,
            (b"vary", b"Origin"),
        ]
