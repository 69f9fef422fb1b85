"""Connections wait in the kernel while no worker can be handed one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from app.processes.acceptor import Acceptor, Recipient
from app.processes.worker import CONNECTION, ClosedConnections
from app.shared_file import SharedFile

CALLERS = 5


class Workers:
    """Two workers, and callers of their server."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        file = SharedFile.create()
        stack.callback(file.close)
        file.write(bytes(24))
        self.recipients: dict[int, Recipient] = {}
        self.channels: list[socket.socket] = []
        for index in range(2):
            ours, theirs = map(stack.enter_context, socket.socketpair())
            ours.setblocking(False)
            theirs.setblocking(False)
            self.recipients[index] = Recipient(ours)
            self.recipients[index].listens = True
            self.channels.append(theirs)
        bound = stack.enter_context(socket.socket())
        bound.bind(("127.0.0.1", 0))
        self._address = bound.getsockname()
        self.closed = ClosedConnections(file, 2)
        self.acceptor = Acceptor(bound, 2, self.recipients, self.closed)
        stack.push_async_callback(self.acceptor.close)
        self.acceptor.resume()

    async def call(self) -> None:
        for _ in range(CALLERS):
            self._stack.enter_context(socket.create_connection(self._address))
        for _ in range(20):  # turns of the loop, which may take longer
            await asyncio.sleep(0.001)

    async def receive_all(self) -> None:
        """Wait until the workers have got every caller."""
        count = 0
        async with asyncio.timeout(30):
            while count < CALLERS:
                await asyncio.sleep(0.01)
                count += self.received(0) + self.received(1)
        assert count == CALLERS

    def received(self, index: int) -> int:
        """Connections that a worker gets now."""
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                data, found, _, _ = socket.recv_fds(self.channels[index], 1, 1)
                assert data == CONNECTION
                self._stack.enter_context(socket.socket(fileno=found[0]))
                count += 1
        return count


@pytest.fixture
async def stack() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as made:
        yield made


async def test_a_worker_without_descriptors_gets_no_connections(
    stack: contextlib.AsyncExitStack,
) -> None:
    workers = Workers(stack)
    workers.recipients[0].has_descriptors = False
    await workers.call()
    assert (workers.received(0), workers.received(1)) == (0, CALLERS)
    workers.recipients[1].has_descriptors = False
    await workers.call()
    assert (workers.received(0), workers.received(1)) == (0, 0)
    workers.recipients[0].has_descriptors = True
    workers.acceptor.resume()
    assert (workers.received(0), workers.received(1)) == (CALLERS, 0)


async def test_the_worker_with_fewest_connections_gets_the_next(
    stack: contextlib.AsyncExitStack,
) -> None:
    workers = Workers(stack)
    await workers.call()
    before = workers.received(0), workers.received(1)
    assert sorted(before) == [CALLERS // 2, CALLERS - CALLERS // 2]
    workers.closed.put(0, before[0])
    await workers.call()
    assert abs(workers.received(0) - (before[1] + workers.received(1))) <= 1


@pytest.mark.parametrize("lacks", ["complete", "ready", "loaded"])
async def test_the_worker_with_more_models_gets_all_connections(
    stack: contextlib.AsyncExitStack, lacks: str
) -> None:
    workers = Workers(stack)
    for each in workers.recipients.values():
        each.loaded = each.ready = each.complete = True
    setattr(workers.recipients[0], lacks, False)
    await workers.call()
    assert (workers.received(0), workers.received(1)) == (0, CALLERS)
    workers.recipients[1].listens = False
    await workers.call()
    assert (workers.received(0), workers.received(1)) == (CALLERS, 0)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_callers_wait_while_the_parent_has_no_descriptor(
    stack: contextlib.AsyncExitStack, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("app.processes.acceptor.PAUSE_S", 0.05)
    workers = Workers(stack)

    def exhausted(_: socket.socket) -> tuple[socket.socket, object]:
        raise OSError(number, "Too many open files")

    with monkeypatch.context() as during, capture_logs() as logs:
        during.setattr(socket.socket, "accept", exhausted)
        await workers.call()
        await asyncio.sleep(0.2)
    assert [each["event"] for each in logs] == ["cannot_accept"]
    await workers.receive_all()


@pytest.mark.parametrize("number", [errno.ETOOMANYREFS, errno.ENOBUFS])
async def test_a_connection_that_cannot_be_handed_over_waits(
    stack: contextlib.AsyncExitStack, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("app.processes.acceptor.PAUSE_S", 0.05)
    workers = Workers(stack)

    def refused(*_: object) -> int:
        raise OSError(number, "not now")

    with monkeypatch.context() as during:
        during.setattr(socket, "send_fds", refused)
        await workers.call()
    await workers.receive_all()
