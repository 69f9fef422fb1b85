"""Static files for browsers: content, ETag, 304, and headers that block other origins."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fastapi import Request, Response

# By the extension of the file's name.
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
OTHER = "text/plain; charset=utf-8"  # for example, a licence
HEADERS = {
    "Cache-Control": "no-cache",  # cached but revalidated, so an upgrade is visible at once
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def policy(*images: str) -> str:
    """A Content-Security-Policy: scripts, styles and calls only from this server, and no frames.

    Args:
        images: sources of pictures in addition to this server, such as `data:`.
    """
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            " ".join(("img-src 'self'", *images)),
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


@dataclass(frozen=True, slots=True)
class File:
    """A file that is served unchanged.

    Attributes:
        policy: its Content-Security-Policy; empty for none.
    """

    content: bytes
    media_type: str
    etag: str
    policy: str

    @classmethod
    def of(cls, name: str, content: bytes, policy: str = "") -> File:
        """A file whose ETag is the same on every server with the same content."""
        media_type = MEDIA_TYPES.get(name.rpartition(".")[2], OTHER)
        return cls(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"', policy)

    def answer(self, request: Request) -> Response:
        """The file, or 304 if the client has it; for HEAD the middleware removes the body."""
        headers = {**HEADERS, "ETag": self.etag}
        if self.policy:
            headers["Content-Security-Policy"] = self.policy
        known = request.headers.get("if-none-match", "").split(",")
        if {each.strip().removeprefix("W/") for each in known} & {self.etag, "*"}:
            return Response(status_code=304, headers=headers)
        headers |= {"Content-Type": self.media_type}
        return Response(self.content, headers=headers)
