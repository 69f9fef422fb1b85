"""Handlers for errors raised below the ASGI application's middleware."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from app import errors
from app.api.errors import TRACE, error_answer, error_body

# Errors of Starlette itself, raised before any code of this application runs.
HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}
HTTP_HINTS = {
    404: "unknown path; GET /docs lists all paths",
    405: "method not allowed; the Allow header lists the allowed methods",
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
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"  # see RequestMiddleware
    return Response(content, error.status_code, headers)


async def _validation_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return error_response(request.scope, errors.InvalidInput(f"{where}: {first['msg']}"))
