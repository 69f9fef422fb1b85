"""Around every request: its id, the last resort for unknown errors, its measures. Pure ASGI."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import Callable, Mapping

import structlog
from fastapi import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import INTERNAL_MESSAGE, OUTCOME, REQUEST_ID, ROUTE, error_body, error_response
from app.errors import Abandoned, ShuttingDown
from app.metrics import Metrics

LOG = structlog.get_logger(__name__)
WELL_FORMED = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestMiddleware:
    """Gives each request an id, answers what nobody caught, counts and times predictions.

    Args:
        app: what it surrounds.
        metrics: where to count.
        stopping: whether the server is about to end.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, stopping: Callable[[], bool]) -> None:
        self._app = app
        self._metrics = metrics
        self._stopping = stopping
        self._prefix = secrets.token_hex(4).encode()  # of this process; a number follows it
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = self._request_id(scope)
        scope[REQUEST_ID] = request_id.decode("ascii")
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", request_id))
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # a stop ends what is unfinished, such as an upload
            if status or not self._stopping():
                raise
            stopped = ShuttingDown("the server stopped before the request was complete")
            await error_response(scope, stopped)(scope, receive, send_with_id)
        except Exception:  # the last resort: answered, logged once with its id, and not raised on
            LOG.exception("unhandled_error", request_id=scope[REQUEST_ID], path=scope["path"])
            if status:
                raise  # half an answer is out: only closing the connection tells the client
            content = error_body(scope, "internal", INTERNAL_MESSAGE)
            response = Response(content, 500, media_type="application/json")
            await response(scope, receive, send_with_id)
        finally:
            if ROUTE in scope:
                outcome = scope.get(OUTCOME, "ok" if status else Abandoned.code)
                request = self._metrics.request(scope[ROUTE], status or 499, outcome)
                request.ended(time.perf_counter() - began)

    def _request_id(self, scope: Scope) -> bytes:
        for name, value in scope["headers"]:
            if name == b"x-request-id" and WELL_FORMED.fullmatch(value):
                return bytes(value)
        return self._prefix + b"%08x" % (next(self._numbers) & 0xFFFFFFFF)


class HotPaths:
    """Sends the two busiest calls straight to their applications, past routing and the rest.

    Matching a route and passing FastAPI's own middleware costs about 20 us a request; this costs 1.

    Args:
        app: what answers everything else.
        applications: path -> what answers a POST to it.
    """

    def __init__(self, app: ASGIApp, applications: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._applications = applications

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        app = self._app
        if scope["type"] == "http" and scope["method"] == "POST":
            app = self._applications.get(scope["path"], app)
        await app(scope, receive, send)
