"""The API reference at /docs: Swagger UI from local files, which works without internet access.

All addresses in the page are relative, so it works behind a proxy that removes a path prefix.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import RedirectResponse

from app.api.static_files import PackagedFiles

SWAGGER = ("fastapi_offline", "static")  # the distribution files of Swagger UI


def add_docs_page(app: FastAPI) -> None:
    """Serve the page and its files."""
    # Swagger UI's style sheet embeds its icons as data: URLs.
    served = PackagedFiles((__package__, "docs"), SWAGGER, images="data:")
    app.add_route("/docs", served.page("docs.html"), include_in_schema=False)
    app.add_route("/docs/", _back_to_the_page, include_in_schema=False)
    app.mount("/docs", served)


async def _back_to_the_page(request: Request) -> RedirectResponse:
    """Redirect without the host and prefix, which a proxy may have changed."""
    return RedirectResponse("../docs")
