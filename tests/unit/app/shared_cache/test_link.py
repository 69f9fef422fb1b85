"""What a connection makes of bytes that no cache server sends."""

from __future__ import annotations

import asyncio

import pytest

from app.shared_cache.link import Link

PART = b"*1000\r\n"


class Wire(asyncio.Transport):
    """Sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `asyncio.Transport`."""

    def abort(self) -> None:
        """See `asyncio.Transport`."""
        self.aborted = True


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([b"*400000000\r\n"], "longer than"),  # a list of 3 GB, if its head were believed
        ([b"*2\r\n$-1\r\n*40000", b"00", b"00\r", b"\n"], "longer than"),
        ([PART] * 1100, "longer than"),  # one in the other
        ([b"%1\r\n*0\r\n*0\r\n"], "does not speak"),
        ([b"*99999999999\r\n"], "does not speak"),
    ],
)
def test_oversized_or_malformed_reply_ends_the_connection(parts: list[bytes], problem: str) -> None:
    why: list[str] = []
    answers: list[object] = []
    link, wire = Link(why.append), Wire()
    link.connection_made(wire)
    link.send(b"", 1, answers.append)
    for part in parts:
        if not wire.aborted:
            link.data_received(part)
    assert wire.aborted
    assert problem in why[0]
    assert answers == [None]


def test_many_small_answers_are_accepted() -> None:
    answers: list[object] = []
    link = Link(pytest.fail)
    link.connection_made(Wire())
    for _ in range(300):
        link.send(b"", 1, answers.append)
        link.data_received(b"*5000\r\n" + b"$-1\r\n" * 2000)
        link.data_received(b"$-1\r\n" * 3000)
    assert answers == [[[None] * 5000]] * 300
