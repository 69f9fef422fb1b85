"""A reader that keeps a part of what it reads, for the test of the fuzzer itself."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fuzz.target import Target

KEPT: list[bytes] = []


def case(data: bytes) -> None:
    """Keeps a little, again and again."""
    KEPT.append(data[:1] * 300)


def seeds() -> Iterator[bytes]:
    """Anything."""
    yield b"seed"


TARGET = Target(case, seeds, (b"word",), max_bytes=64)
