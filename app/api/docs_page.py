"""The API reference at /docs: Swagger UI from local files, which works without internet access.

All addresses in the page are relative, so it works behind a proxy that removes a path prefix.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from app.api.static_files import File, policy

PACKAGE = "fastapi_offline"  # ships the distribution files of Swagger UI
SHIPPED = frozenset(("swagger-ui.css", "swagger-ui-bundle.js"))
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
# "Try it out" calls the server that sent the page, with any prefix before /docs.
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


# Swagger UI's style sheet embeds its icons as data: URLs.
THE_PAGE = File.of("docs.html", PAGE.encode(), policy("data:"))
THE_START = File.of("start.js", START.encode())


def add_docs_page(app: FastAPI) -> None:
    """Serve the page and its files."""
    app.add_route("/docs", _page, include_in_schema=False)
    app.add_route("/docs/", _back_to_the_page, include_in_schema=False)
    app.add_route("/docs/start.js", _start, include_in_schema=False)
    app.add_route("/docs/{name}", _shipped, include_in_schema=False)


async def _page(request: Request) -> Response:
    return THE_PAGE.answer(request)


async def _back_to_the_page(request: Request) -> Response:
    """Redirect without the host and prefix, which a proxy may have changed."""
    return RedirectResponse("../docs")


async def _start(request: Request) -> Response:
    return THE_START.answer(request)


async def _shipped(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in SHIPPED:
        raise HTTPException(404)
    return _read(name).answer(request)


@cache
def _read(name: str) -> File:
    """Read a file on its first request: most servers never show the page."""
    return File.of(name, (files(PACKAGE) / "static" / name).read_bytes())
