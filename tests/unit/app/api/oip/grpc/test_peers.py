"""Which connection ends if too many calls are open."""

from __future__ import annotations

import pytest

from app.api.oip.grpc import peers
from app.api.oip.grpc.peers import Peer, Peers


class Clock:
    """Stands in for the module `time`."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Made:
    """Connections by name, and those that were ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(peers, "time", self.clock)
        self.cut: list[str] = []
        self.ended: list[str] = []
        self.peers = Peers(lambda: self.cut.append("cut"))

    def add(self, name: str, calls: int, unread: int) -> Peer:
        peer = self.peers.add(name, lambda: self.ended.append(name))
        peer.calls = calls
        peer.unread = dict.fromkeys(range(unread), self.clock.now_s)
        return peer


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_the_connection_with_the_most_unread_answers_ends(made: Made) -> None:
    made.add("busy", 900, 0)
    made.add("few", 100, 3)
    made.add("many", 50, 50)
    assert not made.peers.make_room()  # the answers have just been given
    made.clock.now_s += 1
    assert made.peers.make_room()
    assert made.ended == ["many"]
    assert made.cut == ["cut"]


def test_one_ends_at_a_time(made: Made) -> None:
    first, second = made.add("first", 5, 5), made.add("second", 4, 4)
    made.clock.now_s += 1
    assert made.peers.make_room()
    assert made.peers.make_room()  # the calls of the first are still ending
    assert made.ended == ["first"]
    made.peers.remove(first)
    first.calls = 0
    made.clock.now_s += 0.3
    assert made.peers.make_room()
    assert made.ended == ["first", "second"]
    made.peers.remove(second)
    made.clock.now_s += 2
    assert not made.peers.make_room()


def test_all_calls_count_if_the_client_reads_nothing(made: Made) -> None:
    """Rejections have no unread answer, but they stay too."""
    made.add("slow", 3, 3)
    made.add("stalled", 1000, 0).stalled_since = made.clock.now_s
    made.clock.now_s += 1
    assert made.peers.make_room()
    assert made.ended == ["stalled"]


def test_a_new_connection_may_have_the_name_of_an_old_one(made: Made) -> None:
    old, new = made.add("same", 0, 0), made.add("same", 7, 7)
    made.peers.remove(old)
    made.clock.now_s += 1
    assert made.peers.make_room()
    made.peers.remove(new)
    new.calls = 0
    made.clock.now_s += 1
    assert not made.peers.make_room()
