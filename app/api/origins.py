"""Trusted hosts and CORS origins, checked by request headers.

On the ASGI path, Starlette's CORSMiddleware handles CORS, including preflights. This module adds
the same headers to answers on the fast path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from app.errors import UntrustedHost

Header = tuple[bytes, bytes]
ANY = "*"
AUTHORITY = re.compile(rb"(\[[0-9a-f:.]+\]|[^\[\]:/?#@\\\s]+)(?::[0-9]{0,5})?")
# Answer headers, in addition to those that every script may read.
EXPOSED = (
    *("X-Request-Id", "X-Torchlane-Cache", "Server-Timing", "Retry-After"),
    *("retry-after-ms", "Inference-Header-Content-Length", "X-Torchlane-Version"),
)
ALLOWED = (  # request headers
    *("Authorization", "Content-Encoding", "X-API-Key", "X-Request-Id"),
    *("X-Torchlane-Timeout-Ms", "Inference-Header-Content-Length"),
    *("traceparent", "tracestate"),
)
METHODS = ("GET", "POST", "PUT")


class Hosts:
    """The host names that this server accepts.

    A page in a browser can point its own host name at this server's address (DNS rebinding); only
    the Host header distinguishes such requests.

    Args:
        patterns: such as `example.com`, `*.example.com`; `*` means any host.

    Attributes:
        enabled: whether any request is rejected.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.enabled = ANY not in patterns
        names = [each.lower().encode("latin-1") for each in patterns]
        self._names = frozenset(each for each in names if not each.startswith(b"*"))
        self._endings = tuple(each[1:] for each in names if each.startswith(b"*."))

    def check(self, fields: Mapping[bytes, bytes]) -> None:
        """Reject a request for another host.

        Raises:
            UntrustedHost: if it names another host or none.
        """
        if not self.enabled:
            return
        match = AUTHORITY.fullmatch(fields.get(b"host", b"").lower())
        if match is None or not (match[1] in self._names or match[1].endswith(self._endings)):
            raise UntrustedHost("unknown Host header; add it to TORCHLANE_TRUSTED_HOSTS")


class Origins:
    """The origins whose scripts may read answers.

    Args:
        allowed: such as `https://example.com`; `*` means any; if empty, no CORS headers are sent.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self.allowed = tuple(allowed)
        self._any = ANY in allowed
        self._origins = frozenset(each.encode("latin-1") for each in allowed)
        self._exposed = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())

    def headers(self, fields: Mapping[bytes, bytes]) -> list[Header]:
        """CORS headers for the answer to a request with these headers."""
        if not self.allowed:
            return []
        origin = fields.get(b"origin")
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
