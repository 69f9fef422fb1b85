"""Middleware around every ASGI request: its id, access checks, unknown errors, measurements.

Pure ASGI. Predictions on the fast path bypass it: see `exchange.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog
from fastapi import FastAPI, Response
from fastapi.routing import iter_route_contexts
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.entries import ADMIN
from app.api.access import CALLER
from app.api.error_handlers import error_response
from app.api.errors import (
    CALL,
    CUT,
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
from app.telemetry.tracing import CLIENT_GONE, RequestTrace

LOG = structlog.get_logger(__name__)
NOT_READY = 503
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
        known_id: str | None = scope.get(REQUEST_ID)
        request_id = self._ids.of(fields) if known_id is None else known_id.encode("ascii")
        record = RequestTrace(scope["method"], scope["path"], "", request_id, began)
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET", HEAD_ONLY: True}
        scope[REQUEST_ID] = request_id.decode("ascii")
        path = _path(scope)
        scope[FORM] = self._dialects.of(path).errors
        if self._service.tracing.enabled and path not in self._unfollowed:
            self._follow(scope, fields, record)
        passing = _Messages(receive, send, record, self._service.origins.headers(fields))
        try:
            if (rejection := self._rejection(scope, path, fields)) is not None:
                await error_response(scope, rejection)(scope, receive, passing.send_own)
                return
            await self._app(scope, passing.receive, passing.send)
        except asyncio.CancelledError:  # a stop cancels unfinished requests, such as an upload
            if passing.status or not self._service.lifecycle.stopping:
                raise
            stopped = ShuttingDown("the server stopped before the request was complete")
            await error_response(scope, stopped)(scope, receive, passing.send_own)
        except Exception as bug:  # the last resort: answered, logged once with its id, not raised
            ids = {"request_id": scope[REQUEST_ID], **_failed(scope, bug)}
            LOG.exception("unhandled_error", path=scope["path"], **ids)
            if passing.status:
                raise  # part of an answer was sent: only closing the connection signals the error
            content = error_body(scope, 500, "internal", INTERNAL_MESSAGE)
            response = Response(content, 500, media_type="application/json")
            await response(scope, receive, passing.send_own)
        finally:
            self._ended(scope, path, fields, record, passing.status)

    def _follow(self, scope: Scope, fields: dict[bytes, bytes], record: RequestTrace) -> None:
        tracing, headers = self._service.tracing, scope["headers"]
        if tracing.may_follow(headers, fields) and tracing.begin(record, headers, fields):
            scope[TRACE] = record

    def _ended(
        self,
        scope: Scope,
        path: str,
        fields: dict[bytes, bytes],
        record: RequestTrace,
        status: int,
    ) -> None:
        """Count a request, and report it to those that follow it, and to the log.

        Args:
            scope: of the request.
            path: see `_path`.
            fields: its headers.
            record: its record.
            status: the status that was sent; 0 if none was.
        """
        outcome = scope.get(OUTCOME, "ok" if status else Abandoned.code)
        status = status or CLIENT_GONE
        for cut in scope.get(CUT, ()):
            status, outcome, record.bytes_out = cut
        seconds = time.perf_counter() - record.began
        if ROUTE in scope:
            self._metrics.request(scope[ROUTE], status, outcome).count(seconds, record.trace_id)
        access_log = self._service.access_log
        if path in self._unfollowed:
            # Of a probe, "not ready" is an answer like any other.
            is_logged = access_log.wants(0 if status == NOT_READY else status, 0.0)
        else:
            is_logged = access_log.wants(status, seconds)
        if TRACE not in scope and not is_logged:
            return
        record.route = scope.get(ROUTE, "") or _route_of(scope)
        if CALL in scope:
            scope[CALL].describe(record)
        else:
            names = scope.get("path_params") or {}
            record.name, record.version = (str(names.get(key) or "") for key in ("name", "version"))
        self._service.tracing.end(record, status, outcome)
        if is_logged:
            access_log.write(record, fields)

    def _rejection(
        self, scope: Scope, path: str, fields: dict[bytes, bytes]
    ) -> TorchlaneError | None:
        """The error that rejects a request by its head, if any."""
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
                scope["path_params"] = {"name": endpoint.name, "version": endpoint.version}
            return error
        return None


def _path(scope: Scope) -> str:
    """The path below the one at which another application mounts this one."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    below = path.removeprefix(root)
    return below if below[:1] in ("", "/") else path


class _Messages:
    """Passes the messages of a request between server and application, and counts bytes.

    Args:
        receive, send: the server's.
        record: the record of the request.
        for_browsers: headers that only the middleware's own answers lack.

    Attributes:
        status: the status of the answer; 0 if none was sent.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        record: RequestTrace,
        for_browsers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        self.status = 0
        self._receive = receive
        self._send = send
        self._record = record
        self._for_browsers = for_browsers

    async def receive(self) -> Message:
        """See ASGI."""
        message = await self._receive()
        self._record.bytes_in += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        """Send a part of an answer, with the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message.setdefault("headers", []).append((b"x-request-id", self._record.request_id))
        elif self._record.method == "HEAD":
            message = {**message, "body": b""}
        else:
            self._record.bytes_out += len(message.get("body", b""))
        await self._send(message)

    async def send_own(self, message: Message) -> None:
        """Send a part of an answer of the middleware."""
        if message["type"] == "http.response.start":
            message["headers"] += self._for_browsers
        await self.send(message)


def _route_of(scope: Scope) -> str:
    """The path of a request's route as documented; empty if no route matches."""
    route = scope.get("route")
    if route is None:  # rejected before it was routed, or a mounted application
        root_path = scope.get("app_root_path", scope.get("root_path", ""))
        asked = {**scope, "root_path": root_path}
        routes = iter_route_contexts(scope["app"].routes)
        route = next((each for each in routes if each.matches(asked)[0] != Match.NONE), None)
    return getattr(route, "path", "")


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
