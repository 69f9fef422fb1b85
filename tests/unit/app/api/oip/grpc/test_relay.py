"""Each connection is counted out once, however it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.api.oip.grpc import relay
from app.api.oip.grpc.peers import Peers
from app.api.oip.grpc.relay import LATE, Events, Relay

pytestmark = pytest.mark.asyncio
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def _nothing() -> None:
    """Events that a test does not count."""


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)


async def _speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A core that begins as gRPC's does, and ends with its client."""
    writer.write(SETTINGS)
    await reader.read()
    writer.close()


class Made:
    """A relay, and what it told."""

    def __init__(self, most: int = 9, *, free: bool = True) -> None:
        self.told: list[str] = []
        self.is_free = free
        self.events = Events(
            lambda: self.told.append("closed"),
            lambda: self.told.append("idle"),
            lambda: self.told.append("refused"),
        )
        self.relay = Relay(most, Peers(_nothing), lambda _: self.is_free, self.events)

    async def connect(self) -> socket.socket:
        """A client's side of a connection that the relay has taken."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            self.relay.take(listener.accept()[0])
        return client


async def test_a_connection_that_is_lost_and_then_cancelled_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, loop = Made(), asyncio.get_running_loop()
    connect, was_lost, has_ended = loop.connect_accepted_socket, False, asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _speak(reader, writer)
        has_ended.set()

    core = await asyncio.start_server(speak, "127.0.0.1", 0)
    made.relay.core = core.sockets[0].getsockname()[:2]

    async def cancelled(protocol: Any, connection: socket.socket) -> None:
        nonlocal was_lost
        await connect(protocol, connection)
        client.close()
        await _until(lambda: "closed" in made.told)
        was_lost = True
        raise asyncio.CancelledError

    monkeypatch.setattr(loop, "connect_accepted_socket", cancelled)
    client = await made.connect()
    await _until(lambda: was_lost)
    await asyncio.sleep(0.02)
    assert made.told == ["closed"]
    made.relay.close()
    await has_ended.wait()
    core.close()


@pytest.mark.parametrize(
    ("limit_s", "reason"), [(0.0, LATE), (5.0, "Connect call failed")], ids=["late", "refused"]
)
async def test_a_connection_that_does_not_reach_the_core_is_closed_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, reason: str
) -> None:
    monkeypatch.setattr(relay, "CONNECT_S", limit_s)
    made = Made()
    with socket.socket() as unused, capture_logs() as logs:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        made.relay.core = unused.getsockname()
        with await made.connect() as client:
            await _until(lambda: made.told == ["closed"])
            client.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    made.relay.close()
    (line,) = logs
    assert line["event"] == "cannot_accept"
    assert line["reason"].startswith(reason)


async def test_without_descriptors_a_connection_is_closed_and_counted_once() -> None:
    """As with workers: the parent accepts, and the relay needs two more descriptors."""
    made = Made(free=False)
    made.relay.core = ("127.0.0.1", 1)
    client = await made.connect()
    await _until(lambda: bool(made.told))
    assert client.recv(1) == b""
    assert made.told == ["closed"]
    client.close()
    made.relay.close()


async def test_a_connection_too_many_is_refused_and_counted() -> None:
    made = Made(most=0)
    client = await made.connect()
    assert made.told == ["refused", "closed"]
    client.close()
    made.relay.close()


async def test_waiting_connections_reach_the_core_before_the_port_closes() -> None:
    made = Made()
    core = await asyncio.start_server(_speak, "127.0.0.1", 0)
    made.relay.core = core.sockets[0].getsockname()[:2]
    listener = socket.create_server(("127.0.0.1", 0))
    clients = [socket.create_connection(listener.getsockname()) for _ in range(relay.OPENING + 1)]
    made.relay.listen(listener)
    await made.relay.stop_listening()
    core.close()
    for client in clients:
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 99) == SETTINGS
        client.close()
    await _until(lambda: made.told == ["closed"] * len(clients))
    made.relay.close()


@pytest.mark.parametrize("limit_s", [0.0, 0.2], ids=["listening", "waiting for the core"])
async def test_a_stop_that_takes_too_long_leaves_nothing_open(limit_s: float) -> None:
    made, asked = Made(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    core = await asyncio.start_server(silent, "127.0.0.1", 0)
    made.relay.core = core.sockets[0].getsockname()[:2]
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    made.relay.listen(listener)
    await asked.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(limit_s):
            await made.relay.stop_listening()
    made.relay.close()
    await _until(lambda: made.told == ["closed"])
    client.setblocking(False)
    assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    client.close()
    assert listener.fileno() == -1
    core.close()
