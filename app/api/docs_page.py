"""The API reference at /docs: Swagger UI from local files, so it works without internet.

Every address in the page is relative: it works behind a proxy that removes a path prefix.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

PACKAGE = "fastapi_offline"  # ships the distribution files of Swagger UI
HTML, CSS, SCRIPT = (f"text/{kind}; charset=utf-8" for kind in ("html", "css", "javascript"))
SHIPPED = {"swagger-ui.css": CSS, "swagger-ui-bundle.js": SCRIPT}
# Swagger UI's style sheet embeds its icons as data: URLs.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Torchlane API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<noscript>This page needs JavaScript. <a href="openapi.json">The OpenAPI document</a></noscript>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# "Try it out" calls the server that the page came from, whatever the prefix before /docs.
START = """"use strict";
const servers = [{ url: new URL(".", document.baseURI).href.replace(/[/]$/, "") }];
const callThisServer = (update) => (description) => update({ ...description, servers });
SwaggerUIBundle({
  dom_id: "#swagger-ui",
  url: "openapi.json",
  deepLinking: true,
  validatorUrl: null,
  plugins: [{ statePlugins: { spec: { wrapActions: { updateJsonSpec: callThisServer } } } }],
});
"""


@dataclass(frozen=True, slots=True)
class File:
    """A file that is served as it is."""

    content: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, media_type: str) -> File:
        """A file whose ETag is the same on every server that has the same content."""
        return cls(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


THE_PAGE = File.of(PAGE.encode(), HTML)
THE_START = File.of(START.encode(), SCRIPT)


def add_docs_page(app: FastAPI) -> None:
    """Serve the page and its files."""
    app.add_route("/docs", _page, include_in_schema=False)
    app.add_route("/docs/", _back_to_the_page, include_in_schema=False)
    app.add_route("/docs/start.js", _start, include_in_schema=False)
    app.add_route("/docs/{name}", _shipped, include_in_schema=False)


async def _page(request: Request) -> Response:
    return _answer(request, THE_PAGE, {"Content-Security-Policy": POLICY})


async def _back_to_the_page(request: Request) -> Response:
    """Redirect without host and prefix, which a proxy may have changed."""
    return RedirectResponse("../docs")


async def _start(request: Request) -> Response:
    return _answer(request, THE_START, {})


async def _shipped(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in SHIPPED:
        raise HTTPException(404)
    return _answer(request, _read(name), {})


@cache
def _read(name: str) -> File:
    """Read a file on its first request: most servers never show the page."""
    return File.of((files(PACKAGE) / "static" / name).read_bytes(), SHIPPED[name])


def _answer(request: Request, file: File, headers: dict[str, str]) -> Response:
    headers |= {
        "ETag": file.etag,
        "Cache-Control": "no-cache",  # cached, but revalidated: an upgrade shows at once
        "X-Content-Type-Options": "nosniff",
    }
    known = request.headers.get("if-none-match", "").split(",")
    if {each.strip().removeprefix("W/") for each in known} & {file.etag, "*"}:
        return Response(status_code=304, headers=headers)
    headers |= {"Content-Type": file.media_type, "Content-Length": str(len(file.content))}
    return Response(b"" if request.method == "HEAD" else file.content, headers=headers)
