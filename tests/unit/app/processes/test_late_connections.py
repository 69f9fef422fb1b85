"""A client that begins to connect while a port closes is refused: a reset could cost a request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest

from app.api.oip.grpc.peers import Peers
from app.api.oip.grpc.relay import Events, Relay
from app.api.ports import BACKLOG, ignore_new_connections
from app.processes.acceptor import Acceptor, Recipient
from app.processes.listener import Listener
from app.processes.worker import ClosedConnections
from app.shared_file import SharedFile

pytestmark = pytest.mark.asyncio
Close = Callable[[], Awaitable[None]]


class Port(socket.socket):
    """Once `is_closing`, a client begins to connect as soon as no connection waits any more."""

    is_closing = False
    late: socket.socket | None = None

    def accept(self) -> tuple[socket.socket, object]:
        try:
            return super().accept()
        except BlockingIOError:
            if self.is_closing and self.late is None:
                self.late = socket.socket()
                self.late.setblocking(False)
                assert self.late.connect_ex(self.getsockname()) == errno.EINPROGRESS
            raise


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


def a_server(port: Port, _: contextlib.ExitStack) -> Close:
    listener = Listener(port, asyncio.Protocol, BACKLOG)

    async def close() -> None:
        listener.close()
        await listener.wait_closed()

    return close


def a_parent(port: Port, stack: contextlib.ExitStack) -> Close:
    ours, _ = map(stack.enter_context, socket.socketpair())
    ours.setblocking(False)
    worker = Recipient(ours)
    worker.listens = True
    file = SharedFile.create()
    stack.callback(file.close)
    file.write(bytes(16))
    acceptor = Acceptor(port, 1, {0: worker}, ClosedConnections(file, 1))
    acceptor.resume()

    return acceptor.close


def a_relay(port: Port, _: contextlib.ExitStack) -> Close:
    nothing = Events(lambda: None, lambda: None, lambda: None)
    relay = Relay(9, Peers(lambda: None), lambda _: True, nothing)
    port.listen()
    relay.listen(port)

    async def close() -> None:
        await relay.stop_listening()
        relay.close()

    return close


@pytest.mark.parametrize("listen", [a_server, a_parent, a_relay])
async def test_a_late_client_is_refused_and_not_reset(
    stack: contextlib.ExitStack, listen: Callable[[Port, contextlib.ExitStack], Close]
) -> None:
    with Port() as port:
        if not ignore_new_connections(port):
            pytest.skip("there are no socket filters here")
    with Port() as port:
        port.bind(("127.0.0.1", 0))
        close = listen(port, stack)
        port.is_closing = True
        await close()
        assert port.late is not None
        stack.enter_context(port.late)
    writable = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_writer(port.late, writable.set)
    await asyncio.wait_for(writable.wait(), 30)  # a second: the kernel tries once more
    loop.remove_writer(port.late)
    error = port.late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    assert error == errno.ECONNREFUSED, errno.errorcode.get(error, error)
