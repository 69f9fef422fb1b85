"""Middleware around every ASGI request: its id, access checks, unknown errors, measurements.

Pure ASGI. Predictions on the fast path bypass it: see `exchange.py`.
"""

from __future__ import annotations

import asyncio
import time

import structlog
from fastapi import FastAPI, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.entries import ADMIN
from app.api.access import CALLER
from app.api.error_handlers import error_response
from app.api.errors import (
    FORM,
    HEAD_ONLY,
    INTERNAL_MESSAGE,
    OUTCOME,
    REQUEST_ID,
    ROUTE,
    TRACE,
    error_body,
)
from app.api.origins import ALLOWED, EXPOSED, METHODS
from app.api.request_ids import RequestIds
from app.api.service import Service
from app.errors import Abandoned, ShuttingDown, TorchlaneError
from app.telemetry.tracing import RequestTrace

LOG = structlog.get_logger(__name__)
UNFOLLOWED = frozenset(("/metrics", "/live"))  # called all the time, or for hours


class RequestMiddleware:
    """Gives each request an id, answers unhandled errors, counts and times predictions.

    It rejects requests for another host, and requests for an admin path without an admin key,
    before a body is read, whether or not a route matches. HEAD is answered as GET, without the body
    (RFC 9110, section 9.3.2).

    Args:
        app: the inner application.
        service: protocols, access checks and metrics.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._metrics = service.metrics
        self._ids = RequestIds()
        self._dialects = service.dialects
        self._unfollowed = UNFOLLOWED | service.dialects.probes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        fields = dict(scope["headers"])
        request_id = self._ids.of(fields)
        without_body = scope["method"] == "HEAD"
        if without_body:
            scope = {**scope, "method": "GET", HEAD_ONLY: True}
        scope[REQUEST_ID] = request_id.decode("ascii")
        path = _path(scope)
        scope[FORM] = self._dialects.of(path).errors
        if self._service.tracing.enabled and path not in self._unfollowed:
            self._follow(scope, fields, request_id, began)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", request_id))
            elif without_body:
                message = {**message, "body": b""}
            await send(message)

        async def send_own(message: Message) -> None:
            """Send an answer of this middleware, to which no other adds headers for browsers."""
            if message["type"] == "http.response.start":
                message["headers"] += self._service.origins.headers(fields)
            await send_with_id(message)

        try:
            if (rejection := self._rejection(scope, fields)) is not None:
                await error_response(scope, rejection)(scope, receive, send_own)
                return
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # a stop cancels unfinished requests, such as an upload
            if status or not self._service.lifecycle.stopping:
                raise
            stopped = ShuttingDown("the server stopped before the request was complete")
            await error_response(scope, stopped)(scope, receive, send_own)
        except Exception as bug:  # the last resort: answered, logged once with its id, not raised
            ids = {"request_id": scope[REQUEST_ID], **_failed(scope, bug)}
            LOG.exception("unhandled_error", path=scope["path"], **ids)
            if status:
                raise  # part of an answer was sent: only closing the connection signals the error
            content = error_body(scope, 500, "internal", INTERNAL_MESSAGE)
            response = Response(content, 500, media_type="application/json")
            await response(scope, receive, send_own)
        finally:
            self._ended(scope, status or 499, began, "ok" if status else Abandoned.code)

    def _follow(
        self, scope: Scope, fields: dict[bytes, bytes], request_id: bytes, began: float
    ) -> None:
        tracing, headers = self._service.tracing, scope["headers"]
        if not tracing.may_follow(headers, fields):
            return
        method = "HEAD" if HEAD_ONLY in scope else scope["method"]
        trace = RequestTrace(method, scope["path"], "", request_id, began)
        if tracing.begin(trace, headers, fields) is not None:
            scope[TRACE] = trace

    def _ended(self, scope: Scope, status: int, began: float, outcome: str) -> None:
        outcome = scope.get(OUTCOME, outcome)
        trace: RequestTrace | None = scope.get(TRACE)
        if ROUTE in scope:
            request = self._metrics.request(scope[ROUTE], status, outcome)
            trace_id = trace.trace_id if trace is not None else ""
            request.count(time.perf_counter() - began, trace_id)
        if trace is not None:
            trace.route = scope.get(ROUTE, "") or getattr(scope.get("route"), "path", "")
            self._service.tracing.end(trace, status, outcome)

    def _rejection(self, scope: Scope, fields: dict[bytes, bytes]) -> TorchlaneError | None:
        """The error that rejects a request by its head, if any."""
        path = _path(scope)
        try:
            if path not in self._dialects.probes:
                self._service.hosts.check(fields)
            if self._dialects.needs_admin(path):
                scope[CALLER] = self._service.guard.admit(fields, ADMIN)
        except TorchlaneError as error:
            endpoint = self._dialects.endpoints.at(path.encode())
            if endpoint is not None and scope["method"] == "POST":
                scope[ROUTE] = endpoint.route  # counted, although it never reaches its route
                scope[FORM] = self._dialects.of_route(endpoint.route).errors
            return error
        return None


def _path(scope: Scope) -> str:
    """The path below the one at which another application mounts this one."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    below = path.removeprefix(root)
    return below if below[:1] in ("", "/") else path


def _failed(scope: Scope, error: Exception) -> dict[str, str]:
    """Store the error in the request's trace; returns the trace's fields for the log."""
    trace: RequestTrace | None = scope.get(TRACE)
    if trace is None:
        return {}
    trace.error = error
    return trace.log_ids()


def surround(app: FastAPI, service: Service) -> None:
    """Add the middleware for every request off the fast path, outermost last."""
    if service.origins.allowed:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.origins.allowed,
            allow_methods=METHODS,
            allow_headers=ALLOWED,
            expose_headers=EXPOSED,
        )
    app.add_middleware(RequestMiddleware, service=service)
