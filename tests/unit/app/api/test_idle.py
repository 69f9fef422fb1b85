"""Idle connections make room for new ones."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from app.api import idle
from app.api.idle import SPARE, IdleLimit, most_connections


@dataclass(eq=False)
class Connection:
    idle_since: float | None
    is_closing: bool = False
    scanned: int = 0

    def __getattribute__(self, name: str) -> object:
        if name == "is_closing":
            self.scanned += 1
        return super().__getattribute__(name)

    def close_idle(self) -> None:
        assert not self.is_closing
        self.is_closing = True
        self.idle_since = None


def open_connections(count: int, busy: int = 0) -> list[Connection]:
    return [Connection(None) for _ in range(busy)] + [Connection(float(at)) for at in range(count)]


async def make_room(limit: IdleLimit, connections: list[Connection], new: int = 1) -> list[int]:
    """Open new connections in one turn, and return the places of all that are closing then."""
    for _ in range(new):
        connections.append(Connection(None))
        limit.make_room(connections, asyncio.get_running_loop())
    await asyncio.sleep(0)
    return [at for at, each in enumerate(connections) if each.is_closing]


async def test_the_excess_is_closed_that_was_idle_for_longest() -> None:
    connections = open_connections(50, busy=3)
    connections.reverse()
    assert await make_room(IdleLimit(50), connections, new=7) == list(range(40, 50))


async def test_a_scan_of_many_also_makes_room_for_later_ones() -> None:
    limit, connections = IdleLimit(2 * SPARE), open_connections(2 * SPARE)
    assert await make_room(limit, connections) == [0, 1, 2]
    assert await make_room(limit, connections, new=2) == [0, 1, 2]


async def test_busy_connections_are_scanned_again_without_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle, "AGAIN_S", 0.02)
    limit, connections = IdleLimit(10), open_connections(1, busy=20)
    assert await make_room(limit, connections) == [20]
    connections[3].idle_since = 7.0
    assert await make_room(limit, connections) == [20]  # not in every turn
    async with asyncio.timeout(30):
        while not connections[3].is_closing:
            await asyncio.sleep(0.01)


def test_half_of_the_descriptors_stay_free() -> None:
    assert 0 < most_connections() <= 16_384
