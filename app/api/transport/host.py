"""What a connection is to the request that it reads, and a server to its connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import ASGIApp

from app.api.errors import RawAnswer
from app.api.request_ids import RequestIds
from app.api.service import Service
from app.api.transport.reading import Reader
from app.api.transport.writing import ServerState, Writer
from app.errors import TorchlaneError


@dataclass(slots=True)
class Host:
    """The server that a connection belongs to.

    Attributes:
        app: answers all requests off the fast path.
        scope: copied into the scope of each.
        state: shared by all connections.
        keep_alive_s: how long an idle connection stays open.
    """

    app: ASGIApp
    scope: dict[str, Any]
    state: ServerState
    keep_alive_s: float


class RequestConnection(Protocol):
    """What a request needs from its connection."""

    host: Host
    service: Service
    ids: RequestIds
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    reader: Reader
    writer: Writer

    def answered(self) -> None:
        """Called when the answer has been written."""

    def close_behind_answer(self) -> None:
        """Close, but let the client read what was written."""

    def send_error(self, error: TorchlaneError, request_id: bytes) -> RawAnswer:
        """Answer in place of the application; returns the answer."""
