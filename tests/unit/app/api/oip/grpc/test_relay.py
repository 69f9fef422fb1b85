"""Connections that cannot be passed on to gRPC's core."""

from __future__ import annotations

import asyncio
import socket

import pytest
from structlog.testing import capture_logs

from app.api.oip.grpc import relay
from app.api.oip.grpc.relay import LATE, Relay


@pytest.mark.parametrize(
    ("limit_s", "reason"), [(0.0, LATE), (5.0, "Connect call failed")], ids=["late", "refused"]
)
async def test_a_connection_that_does_not_reach_the_core_is_closed_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, reason: str
) -> None:
    monkeypatch.setattr(relay, "CONNECT_S", limit_s)
    closed = asyncio.Event()
    tested = Relay(1, closed.set)
    with socket.socket() as unused, capture_logs() as logs:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        tested.core = unused.getsockname()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        with ours:
            tested.take(accepted)
            await closed.wait()
            ours.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(ours, 1) == b""
    tested.close()
    (line,) = logs
    assert line["event"] == "cannot_accept"
    assert line["reason"].startswith(reason)
