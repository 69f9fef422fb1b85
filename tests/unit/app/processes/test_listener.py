"""Waiting and handed-over connections are taken at once, and none is dropped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import uvloop

from app.processes.listener import Listener, SocketHandover
from tests.unit.app.engine.harness import until

WAITING = 100


class Made(asyncio.Protocol):
    """Counts the connections that have a protocol."""

    count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).count += 1
        transport.close()


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.SelectorEventLoop])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    Made.count = 0
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


class Bound(socket.socket):
    """A socket whose next accepts fail."""

    failures: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            raise OSError(self.failures.pop(), "no more of them")
        return super().accept()


def bound(*failures: int) -> Bound:
    found = Bound()
    found.failures = list(failures)
    found.bind(("127.0.0.1", 0))
    return found


@contextlib.asynccontextmanager
async def listening(
    listener_socket: Bound, make: Callable[[], asyncio.Protocol] = Made
) -> AsyncIterator[Listener]:
    listener = Listener(listener_socket, make, backlog=WAITING)
    try:
        yield listener
    finally:
        listener.close()
        await listener.wait_closed()


def connect(to: socket.socket, many: int) -> list[socket.socket]:
    """Connections that the kernel holds but no worker has accepted."""
    return [socket.create_connection(to.getsockname()) for _ in range(many)]


def close(clients: list[socket.socket]) -> None:
    for client in clients:
        client.close()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_waiting_connections_are_accepted_within_few_turns(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        here = bound()
        async with listening(here):
            clients = connect(here, WAITING)
            await turns(10)  # uvloop alone would have taken ten
            assert Made.count == WAITING
            close(clients)

    runner.run(scenario())


@pytest.mark.parametrize("burst", [2 * WAITING, WAITING // 8])
def test_close_accepts_waiting_connections_first(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, burst: int
) -> None:
    monkeypatch.setattr("app.processes.listener.BURST", burst)

    async def scenario() -> None:
        here = bound()
        async with listening(here) as listener:
            clients = connect(here, WAITING)
            listener.close()
            await listener.wait_closed()
            assert Made.count == WAITING
            close(clients)
            with pytest.raises(OSError, match=r"refused|Bad file descriptor"):
                connect(here, 1)

    runner.run(scenario())


def test_missing_descriptors_pause_the_listener(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.processes.listener.PAUSE_S", 0.05)

    async def scenario() -> None:
        here = bound(errno.EMFILE)
        async with listening(here):
            clients = connect(here, 2)
            await turns(10)
            assert Made.count == 0
            await until(lambda: Made.count == 2)
            close(clients)

    runner.run(scenario())


class Parent:
    """The other end of a worker's channel: hands over one end of each connection it makes."""

    def __init__(self) -> None:
        self.channel, self.workers_channel = socket.socketpair()
        self.workers_channel.setblocking(False)
        self.clients: list[socket.socket] = []
        self.orders: list[bytes] = []
        self.lost = 0
        self.told: list[bool] = []
        self.order: bytes | None = None

    def hand_over(self, many: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            for _ in range(many):
                self.clients.append(socket.create_connection(server.getsockname()))
                accepted, _ = server.accept()
                with accepted:
                    socket.send_fds(self.channel, [b"c"], [accepted.fileno()])

    def connection_closed(self) -> None:
        self.lost += 1

    def has_descriptors(self, has: bool) -> None:
        self.told.append(has)

    def early_order(self) -> bytes | None:
        return self.order

    def close(self) -> None:
        close(self.clients)
        self.channel.close()
        self.workers_channel.close()


@contextlib.asynccontextmanager
async def handed_over(make: Callable[[], asyncio.Protocol] = Made) -> AsyncIterator[Parent]:
    parent = Parent()
    handover = SocketHandover(parent.workers_channel, make, parent.orders.append, parent)
    try:
        yield parent
    finally:
        handover.close()
        await handover.wait_closed()
        parent.close()


def test_order_follows_the_connections_before_it(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with handed_over() as parent:
            parent.hand_over(WAITING)
            parent.channel.send(b"d")
            await turns(10)
            assert Made.count == WAITING
            assert parent.orders == [b"d"]
            assert parent.lost == 0

    runner.run(scenario())


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Connections have no descriptor until the list is cleared; those of the reserve are free."""
    is_full = [True]

    def free(_: int, *, last: bool = False) -> bool:
        return last or not is_full

    monkeypatch.setattr("app.processes.listener.is_free_for_connection", free)
    monkeypatch.setattr("app.processes.listener.PAUSE_S", 0.02)
    return is_full


def test_callers_wait_in_the_kernel_without_descriptors(
    runner: asyncio.Runner, full: list[bool]
) -> None:
    async def scenario() -> None:
        here = bound()
        async with listening(here):
            clients = connect(here, 3)
            await asyncio.sleep(0.1)
            assert Made.count == 0
            full.clear()
            await until(lambda: Made.count == 3)
            close(clients)

    runner.run(scenario())


def test_connections_wait_in_the_channel_without_descriptors(
    runner: asyncio.Runner, full: list[bool]
) -> None:
    async def scenario() -> None:
        async with handed_over() as parent:
            parent.hand_over(3)
            await until(lambda: bool(parent.told))
            await asyncio.sleep(0.05)
            assert (Made.count, parent.told) == (0, [False])
            full.clear()
            await until(lambda: (Made.count, parent.told) == (3, [False, True]))
            assert parent.lost == 0

    runner.run(scenario())


def test_order_behind_waiting_connections_is_found(
    runner: asyncio.Runner, full: list[bool]
) -> None:
    async def scenario() -> None:
        async with handed_over() as parent:
            parent.hand_over(3)
            parent.channel.send(b"d")
            parent.order = b"d"
            await until(lambda: bool(parent.orders))
            assert parent.orders[0] == b"d"
            assert Made.count == 0
        assert full
        assert (Made.count, parent.lost) == (3, 0)  # with the last descriptors

    runner.run(scenario())


def test_connection_without_a_protocol_counts_as_lost(runner: asyncio.Runner) -> None:
    def broken() -> asyncio.Protocol:
        raise RuntimeError("no")

    async def scenario() -> None:
        async with handed_over(broken) as parent:
            parent.hand_over(1)
            parent.clients[0].settimeout(5)
            await turns(10)
            assert parent.clients[0].recv(1) == b""
            assert parent.lost == 1

    runner.run(scenario())


def test_aborted_connection_does_not_stop_others(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        here = bound(errno.ECONNABORTED)
        async with listening(here):
            clients = connect(here, 3)
            await turns(10)
            assert Made.count == 3
            close(clients)

    runner.run(scenario())


def test_end_of_the_parent_is_an_empty_order(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with handed_over() as parent:
            parent.channel.close()
            await turns(10)
            assert parent.orders[0] == b""

    runner.run(scenario())
