"""The page at /, and the calls that work without it: GET /live and the reports of versions.

All addresses in the page are relative, so it works behind a proxy that removes a path prefix.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from app.access.guard import Guard
from app.api.access import Scraper
from app.api.openapi import schemas
from app.api.openapi.headers import RETRY_AFTER
from app.api.page.live import Live, LiveStream
from app.api.page.report import add_report
from app.api.service import Service
from app.api.static_files import PackagedFiles

LIVE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "one snapshot per second, as a line `data: {...}` and an empty line; "
        "docs/page.md describes its fields",
    },
    503: {
        "model": schemas.ErrorBody,
        "description": "too many listeners, or the server is shutting down",
        "headers": RETRY_AFTER,
    },
}


async def _hidden(_: Request) -> Response:
    raise HTTPException(404)


def _access(guard: Guard) -> Callable[[Request], Awaitable[Response]]:
    """A route that says what the caller may do, so that the page offers nothing else."""

    async def answer(request: Request) -> Response:
        scopes = guard.scopes(dict(request.scope["headers"]))
        content = {"keys": guard.asks_for_keys, "scopes": sorted(scopes)}
        return JSONResponse(content, headers={"Cache-Control": "no-store"})

    return answer


def add_page(app: FastAPI, service: Service, *, shown: bool) -> None:
    """Add the live data, the reports and, if it is shown, the page."""
    live, asks_for_key = Live(service), not service.limits.open_metrics
    app.add_route("/page/access", _access(service.guard), include_in_schema=False)  # /docs asks too
    app.state.has_page = shown
    if shown:
        # blob: and data: are for pictures that a user chose or drew
        served = PackagedFiles((__package__, "static"), images="blob: data:")
        app.add_route("/", served.page("index.html"), include_in_schema=False)
        app.mount("/page", served)
    else:  # else GET / would be the wrong method of the call there
        app.add_route("/", _hidden, include_in_schema=False)
    add_report(app, service)

    @app.get(
        "/live",
        tags=["health"],
        operation_id="live_load",
        response_class=Response,
        responses=LIVE,
        dependencies=[Scraper] if asks_for_key else [],
    )
    async def listen() -> Response:
        """The load of the server, once per second, until the caller disconnects."""
        return LiveStream(live, service, asks_for_key=asks_for_key)
