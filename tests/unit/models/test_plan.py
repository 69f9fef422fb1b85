"""The plan: which form is the fastest at which batch size."""

from __future__ import annotations

import pytest

from models.plan import batch_sizes


@pytest.mark.parametrize(
    ("largest", "wanted"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (8, (1, 2, 4, 8)),
        (12, (1, 2, 4, 8, 12)),
        (64, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_batch_sizes_are_powers_of_two_and_the_largest(
    largest: int, wanted: tuple[int, ...]
) -> None:
    assert batch_sizes(largest) == wanted
