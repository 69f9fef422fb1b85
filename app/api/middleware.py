"""Around every request: its id, the last resort for unknown errors, the count. Pure ASGI."""

from __future__ import annotations

import re
import secrets

import structlog
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import INTERNAL_MESSAGE, OUTCOME, REQUEST_ID, error_response
from app.metrics import Metrics

LOG = structlog.get_logger(__name__)
WELL_FORMED = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestMiddleware:
    """Gives each request an id, answers what nobody caught, and counts requests for predictions.

    Args:
        app: what it surrounds.
        metrics: where to count.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
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
        except Exception:  # the last resort: answered, logged once with its id, and not raised on
            LOG.exception("unhandled_error", request_id=scope[REQUEST_ID], path=scope["path"])
            if status:
                raise  # half an answer is out: only closing the connection tells the client
            response = error_response(Request(scope), 500, "internal", INTERNAL_MESSAGE)
            await response(scope, receive, send_with_id)
        route = getattr(scope.get("route"), "path", "")
        if route.endswith("predict"):
            outcome = scope.get(OUTCOME, "ok")
            self._metrics.requests.labels(route, str(status or 499), outcome).inc()


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and WELL_FORMED.fullmatch(value):
            return bytes(value)
    return secrets.token_hex(8).encode()
