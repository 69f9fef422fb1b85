"""Around every request: its id, the last resort for unknown errors, its measures. Pure ASGI."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from fastapi import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import INTERNAL_MESSAGE, OUTCOME, REQUEST_ID, ROUTE, error_body, error_response
from app.api.request_ids import RequestIds
from app.errors import Abandoned, ShuttingDown
from app.metrics import Metrics

LOG = structlog.get_logger(__name__)


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
        self._ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = self._ids.of(scope["headers"])
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
