"""A reader that takes all bytes but some, for the test of the fuzzer itself."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fuzz.target import Target


def case(data: bytes) -> None:
    """Fails on what no seed has."""
    if data[:2] == b"PK" and len(data) > 4:
        raise ZeroDivisionError("planted")


def seeds() -> Iterator[bytes]:
    """None of them fails."""
    yield b"seed"


TARGET = Target(case, seeds, (b"PK",), max_bytes=64)
