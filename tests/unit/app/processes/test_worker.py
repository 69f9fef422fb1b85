"""A worker's place, and what it and its parent tell each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from app.processes.worker import (
    DRAIN,
    FULL,
    READY,
    ROOM,
    ClosedConnections,
    OpenConnections,
    Place,
    Shared,
    Worker,
)


@pytest.fixture
def shared() -> Iterator[Shared]:
    """The files of two workers."""
    made = Shared.create(2)
    yield made
    made.close()


def test_place_survives_a_round_trip(shared: Shared) -> None:
    place = Place(1, 2, 77, 9, 10, shared)
    parsed = Place.parse(str(place))
    assert (parsed.index, parsed.of, parsed.parent) == (1, 2, 77)
    assert (parsed.channel, parsed.news) == (9, 10)
    assert parsed.shared.descriptors() == shared.descriptors()
    assert len(parsed.shared.metrics) == 3  # two workers and their parent
    assert len(parsed.shared.differing) == 2


@pytest.mark.parametrize(
    "text", ["", "1", "1/2:3", "1/2:3:x:5:6,7,8", "a/2:3:4:5:6,7", "1/2:3:4:5:6"]
)
def test_malformed_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|literal"):
        Place.parse(text)


def test_parent_sees_closed_connections_of_a_worker(shared: Shared) -> None:
    seen_by_parent = ClosedConnections(shared.connections, 2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = Worker(Place(1, 2, os.getpid(), theirs.fileno(), -1, shared))
        connections = OpenConnections(worker)
        connections.add("one")
        connections.add("other")
        connections.discard("one")
        connections.discard("one")  # uvicorn does, when a connection is handed to another protocol
        assert seen_by_parent.counts() == (0, 1)
        connections.discard("other")
        assert seen_by_parent.counts() == (0, 2)
        seen_by_parent.put(1, 0)
        assert seen_by_parent.counts() == (0, 0)
        worker.tell(READY)
        assert ours.recv(10) == READY
        worker.has_descriptors(False)
        worker.has_descriptors(True)
        assert ours.recv(10) == FULL + ROOM
        assert worker.early_order() is None
        seen_by_parent.stop()
        assert worker.early_order() == DRAIN
        assert seen_by_parent.counts() == (0, 0)
        worker.channel.close()
