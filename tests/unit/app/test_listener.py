"""Waiting connections are taken at once, and none is dropped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import uvloop

from app.listener import Listener

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
    """Connections that the kernel has taken and nobody has accepted."""
    return [socket.create_connection(to.getsockname()) for _ in range(many)]


def close(clients: list[socket.socket]) -> None:
    for client in clients:
        client.close()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_all_that_wait_are_taken_within_a_few_turns(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        here = bound()
        async with listening(here):
            clients = connect(here, WAITING)
            await turns(10)  # uvloop alone would have taken ten
            assert Made.count == WAITING
            close(clients)

    runner.run(scenario())


def test_what_waits_at_the_close_is_taken_before_it(runner: asyncio.Runner) -> None:
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


def test_without_descriptors_it_pauses_and_goes_on(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.listener.PAUSE_S", 0.05)

    async def scenario() -> None:
        here = bound(errno.EMFILE)
        async with listening(here):
            clients = connect(here, 2)
            await turns(10)
            assert Made.count == 0
            await asyncio.sleep(0.2)
            assert Made.count == 2
            close(clients)

    runner.run(scenario())


def test_one_that_went_away_does_not_stop_the_others(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        here = bound(errno.ECONNABORTED)
        async with listening(here):
            clients = connect(here, 3)
            await turns(10)
            assert Made.count == 3
            close(clients)

    runner.run(scenario())


def test_a_protocol_that_cannot_be_made_closes_its_connection(runner: asyncio.Runner) -> None:
    def broken() -> asyncio.Protocol:
        raise RuntimeError("no")

    async def scenario() -> None:
        here = bound()
        async with listening(here, broken):
            (client,) = connect(here, 1)
            client.settimeout(5)
            await turns(10)
            assert client.recv(1) == b""
            client.close()

    runner.run(scenario())
