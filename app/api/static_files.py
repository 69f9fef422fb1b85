"""Static files for browsers, with headers that block other origins."""

from __future__ import annotations

import mimetypes
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request, Response
from starlette.staticfiles import StaticFiles

# Scripts, styles and calls only from this server, and no frames.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' {}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",  # cached but revalidated, so an upgrade is visible at once
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class PackagedFiles(StaticFiles):
    """Files that come with packages.

    Args:
        folders: the name of a package, and of a folder in it; the first that has a file counts.
        images: sources of pictures in addition to this server, such as `data:`.
    """

    def __init__(self, *folders: tuple[str, str], images: str) -> None:
        # Some installers link files. No path leads out of a folder, whether or not links count.
        super().__init__(packages=list(folders), follow_symlink=True)
        self._headers = {**HEADERS, "Content-Security-Policy": POLICY.format(images)}
        mimetypes.add_type("text/javascript", ".js")  # a system may have other ideas

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """A file, or 304 if the client has it; for HEAD the middleware removes the body."""
        response = super().file_response(*args, **kwargs)
        response.headers.update(self._headers)
        return response

    def page(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        """A route that answers with one of the files."""

        async def answer(request: Request) -> Response:
            return await self.get_response(name, request.scope)

        return answer
