"""The one table from error class to status, and the one shape of an error answer."""

from __future__ import annotations

import math

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app import errors

STATUS: dict[type[errors.TorchlaneError], int] = {
    errors.InvalidInput: 422,
    errors.UnsupportedMediaType: 415,
    errors.NotAcceptable: 406,
    errors.PayloadTooLarge: 413,
    errors.ModelNotFound: 404,
    errors.Abandoned: 499,  # nobody reads it; nginx's number, for metrics and logs
    errors.Overloaded: 503,
    errors.ModelNotReady: 503,
    errors.ShuttingDown: 503,
    errors.DeadlineExceeded: 504,
    errors.BackendFailed: 500,
    errors.NonFiniteOutput: 500,
    errors.ArtifactInvalid: 500,
}
# What Starlette itself raises, before any of our code runs.
HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}
HTTP_HINTS = {
    404: "no such path; GET /docs lists what there is",
    405: "this path does not take this method; the Allow header lists what it takes",
}
INTERNAL_MESSAGE = "something went wrong inside the server; its log has this request's id"
REQUEST_ID = "torchlane.request_id"  # keys in the ASGI scope
OUTCOME = "torchlane.outcome"


def error_response(
    request: Request,
    status: int,
    code: str,
    message: str,
    details: tuple[errors.Detail, ...] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """An error in the shape that every error has; remembers its code for the metrics."""
    request.scope[OUTCOME] = code
    body = {
        "error": message,
        "code": code,
        "request_id": request.scope.get(REQUEST_ID, ""),
        "details": details,
    }
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error that is raised below the middleware."""
    app.add_exception_handler(errors.TorchlaneError, _torchlane_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)


async def _torchlane_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, errors.TorchlaneError) or type(error) not in STATUS:
        raise error
    headers = {}
    if isinstance(error, errors.Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, errors.ShuttingDown):
        headers["Connection"] = "close"  # the client finds another server at once
    status = STATUS[type(error)]
    return error_response(request, status, error.code, str(error), error.details, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = HTTP_CODES.get(error.status_code, "http_error")
    message = HTTP_HINTS.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    return error_response(request, error.status_code, code, message, headers=headers)


async def _validation_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    code = errors.InvalidInput.code
    return error_response(request, 422, code, f"{where}: {first['msg']}")
