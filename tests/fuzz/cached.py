"""Values of the second cache: what is read is what would be written, and nothing else is read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from blake3 import blake3

from app.shared_cache.envelope import MAGIC, START, WrongValue, decode, encode
from app.types import Arrays
from tests.fuzz.target import Finding, Target

KEY = bytes(range(32))
VALUES: tuple[Arrays, ...] = (
    {},
    {"scores": np.linspace(0, 1, 10, dtype=np.float32)},
    {
        "boxes": np.zeros((2, 4), np.int64),
        "found": np.array([True, False]),
        "n": np.array(7, np.int8),
    },
)


def case(data: bytes) -> None:
    """As they are, and with a checksum that is right: else hardly any would be looked at."""
    for value in (data, MAGIC + blake3(KEY + data).digest() + KEY + data):
        try:
            found = decode(KEY, value)
        except WrongValue:
            continue
        if encode(KEY, found) != value:
            raise Finding(f"{value!r} is read as {found}")
        if any(array.flags.writeable for array in found.values()):
            raise Finding("a value can be changed")


def seeds() -> Iterator[bytes]:
    """Whole values, and what stands behind their keys."""
    for value in VALUES:
        data = encode(KEY, value) or b""
        yield data
        yield data[START + len(KEY) :]


TARGET = Target(case, seeds, (MAGIC, KEY, b"\x00", b"\xff\xff\xff\xff", b"\x10"), 512)
