"""A worker's place, and its count of closed connections."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from app.processes.worker import READY, ClosedConnections, OpenConnections, Place, Worker


def test_place_survives_a_round_trip() -> None:
    place = Place(1, 4, 77, 9, Path("/tmp/a folder: with a colon"))
    assert Place.parse(str(place)) == place


@pytest.mark.parametrize("text", ["", "1", "1/2:3", "1/2:3:x:/tmp", "a/2:3:4:/tmp"])
def test_malformed_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|literal"):
        Place.parse(text)


def test_parent_sees_closed_connections_of_a_worker(tmp_path: Path) -> None:
    seen_by_parent = ClosedConnections(tmp_path, 2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = Worker(Place(1, 2, os.getpid(), theirs.fileno(), tmp_path))
        connections = OpenConnections(worker)
        connections.add("one")
        connections.add("other")
        connections.discard("one")
        connections.discard("one")  # uvicorn does, when a connection is handed to another protocol
        assert (seen_by_parent[0], seen_by_parent[1]) == (0, 1)
        seen_by_parent.reset(1)
        connections.discard("other")
        assert seen_by_parent[1] == 1
        worker.tell(READY)
        assert ours.recv(10) == READY
        worker.channel.close()
