"""Idle connections make room for new ones."""

from __future__ import annotations

from dataclasses import dataclass

from app.api.idle import AGAIN_S, FEW, IdleLimit, most_connections


@dataclass(eq=False)
class Connection:
    idle_since: float | None
    closed: bool = False

    def close_idle(self) -> None:
        self.closed = True


def open_connections(count: int, busy: int = 0) -> list[Connection]:
    return [Connection(None) for _ in range(busy)] + [Connection(float(at)) for at in range(count)]


def test_few_connections_stay() -> None:
    connections = open_connections(8)
    IdleLimit(8).make_room(connections, 0)
    assert not any(each.closed for each in connections)


def test_those_idle_for_longest_are_closed() -> None:
    connections = open_connections(100, busy=3)
    IdleLimit(80).make_room(connections, 0)
    assert [each.idle_since for each in connections if each.closed] == list(range(23))


def test_at_least_a_few_are_closed_at_once() -> None:
    connections = open_connections(100)
    IdleLimit(99).make_room(connections, 0)
    assert sum(each.closed for each in connections) == FEW


def test_busy_connections_are_not_scanned_all_the_time() -> None:
    limit, connections = IdleLimit(10), open_connections(0, busy=20)
    limit.make_room(connections, 0)
    connections += open_connections(1)
    limit.make_room(connections, AGAIN_S / 2)
    assert not connections[-1].closed
    limit.make_room(connections, AGAIN_S)
    assert connections[-1].closed


def test_half_of_the_descriptors_stay_free() -> None:
    assert 0 < most_connections() <= 16_384
