"""Handlers for errors raised below the ASGI application's middleware."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from app import errors
from app.api.errors import TRACE, error_answer, error_body
from app.api.static_files import HEADERS as FILE_HEADERS
from app.api.static_files import POLICY

# Errors of Starlette itself, raised before any code of this application runs.
HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}
HTTP_HINTS = {
    404: "unknown path; GET /docs lists all paths",
    405: "method not allowed; the Allow header lists the allowed methods",
}
NOT_FOUND = 404
PAGE_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Not found · Torchlane</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
)
PAGE_HEADERS = {
    **FILE_HEADERS,
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": POLICY.format(""),
}


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error that is raised below the middleware."""
    app.add_exception_handler(errors.TorchlaneError, _torchlane_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)


def error_response(scope: Scope, error: errors.TorchlaneError) -> Response:
    """An error as a response, for callers that need more than its parts."""
    status, headers, content = error_answer(scope, error)
    if TRACE in scope:
        scope[TRACE].error = error
    return Response(content, status, {k.decode(): v.decode() for k, v in headers})


async def _torchlane_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, errors.TorchlaneError):
        raise error
    return error_response(request.scope, error)


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = HTTP_CODES.get(error.status_code, "http_error")
    message = HTTP_HINTS.get(error.status_code, str(error.detail))
    content = error_body(request.scope, error.status_code, code, message)
    headers = {"content-type": "application/json", **(error.headers or {})}
    if error.status_code == NOT_FOUND:
        if "text/html" in request.headers.get("accept", ""):
            content, headers = _page_of(request), PAGE_HEADERS
        headers = {**headers, "vary": "Accept"}
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"  # see RequestMiddleware
    return Response(content, error.status_code, headers)


def _page_of(request: Request) -> bytes:
    """What a browser shows for an unknown path: where to go, with any prefix of a proxy."""
    scope = request.scope
    mounted_at = scope.get("app_root_path", scope.get("root_path", ""))  # not of /docs or /page
    path = scope["path"].removeprefix(mounted_at)
    root = "../" * (path.count("/") - 1) or "./"
    has_page = getattr(request.app.state, "has_page", False)
    style = f'<link rel="stylesheet" href="{root}page/page.css">' * has_page
    page = f'<p><a href="{root}">/</a> shows the models, and lets you try them.</p>' * has_page
    docs = f'<p><a href="{root}docs">/docs</a> lists all calls.</p>'
    said = "<h1>There is nothing at this address</h1>"
    return f'{PAGE_HEAD}{style}<main class="stack">{said}{page}{docs}</main>'.encode()


async def _validation_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return error_response(request.scope, errors.InvalidInput(f"{where}: {first['msg']}"))
