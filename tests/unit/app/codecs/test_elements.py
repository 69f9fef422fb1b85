"""Elements of BYTES in binary: what is read, what is refused, and their texts."""

from __future__ import annotations

import pytest

from app.codecs.elements import (
    PART_BYTES,
    check_bytes,
    elements_of,
    join_bytes,
    split_bytes,
    text_of,
)
from app.errors import InvalidInput

ELEMENTS = [b"", b"a", bytes(range(256))]
OCTETS = memoryview(join_bytes(ELEMENTS))


def test_strings_of_any_bytes() -> None:
    assert split_bytes("x", OCTETS, 3) == [bytes(each) for each in elements_of("x", OCTETS)]
    assert split_bytes("x", OCTETS, 3) == ELEMENTS
    check_bytes("x", OCTETS, 3)


@pytest.mark.parametrize(
    ("octets", "count", "why"),
    [
        (OCTETS, 2, "x: 2 of 2 elements with their lengths take 9 of 269 bytes"),
        (OCTETS, 4, "x: 3 of 4 elements with their lengths take 269 of 269 bytes"),
        (OCTETS[:-1], 3, "x: element 2 claims 256 bytes, 255 are left"),
        (OCTETS[:7], 3, "x: element 1 is cut off in its length"),
        (memoryview(b"\xff\xff\xff\xff"), 1, "x: element 0 claims 4294967295 bytes, 0 are left"),
    ],
)
def test_octets_that_are_damaged_or_of_another_number(
    octets: memoryview, count: int, why: str
) -> None:
    for read in (check_bytes, split_bytes):
        with pytest.raises(InvalidInput, match=f"^{why}$"):
            read("x", octets, count)


def test_long_text_comes_in_parts() -> None:
    text = "aé" * PART_BYTES  # characters lie across the parts
    parts = [*text_of(memoryview(text.encode()))]
    assert "".join(parts) == text
    assert len(parts) == 3
    for wrong in (text.encode() + b"\xc3", b"\xff", b"a" * PART_BYTES + b"\xff"):
        with pytest.raises(UnicodeDecodeError):
            list(text_of(memoryview(wrong)))
