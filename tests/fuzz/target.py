"""What a target of the fuzzer is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


class Finding(AssertionError):
    """Something came out that must not; the fuzzer keeps the bytes that did it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A reader of bytes.

    Attributes:
        case: reads them once; raises `Finding`, or whatever the reader lets through.
        seeds: what the fuzzer begins with: valid bytes of every kind.
        words: what it should put into them: names, signatures, edges of numbers.
        max_bytes: of one case.
    """

    case: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    words: tuple[bytes, ...]
    max_bytes: int
