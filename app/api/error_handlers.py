"""Errors that are raised below the middleware of the ASGI application, as responses."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from app import errors
from app.api.errors import error_answer, error_body

# What Starlette itself refuses, before any of our code runs.
HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}
HTTP_HINTS = {
    404: "no such path; GET /docs lists what there is",
    405: "this path does not take this method; the Allow header lists what it takes",
}


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error that is raised below the middleware."""
    app.add_exception_handler(errors.TorchlaneError, _torchlane_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)


def error_response(scope: Scope, error: errors.TorchlaneError) -> Response:
    """One of our own errors, where a response is wanted instead of its parts."""
    status, headers, content = error_answer(scope, error)
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
    content = error_body(request.scope, code, message)
    headers = {"content-type": "application/json", **(error.headers or {})}
    return Response(content, error.status_code, headers)


async def _validation_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    code = errors.InvalidInput.code
    content = error_body(request.scope, code, f"{where}: {first['msg']}")
    return Response(content, 422, media_type="application/json")
