"""Leaves the request id of answers to Ray Serve, whose proxy adds the header to every answer."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"


class WithoutRequestId:
    """ASGI middleware that removes the application's own header.

    Both have the same id: the proxy gives each request one, and the application takes it over.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""

        async def send_without(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [each for each in message.get("headers", ()) if each[0].lower() != HEADER]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_without)
