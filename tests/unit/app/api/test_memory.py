"""The memory that callers share."""

from __future__ import annotations

import pytest

from app.api.answers import AnswerMemory
from app.api.memory import FREE_BYTES
from app.errors import Overloaded

LIMIT = 1_000_000


@pytest.fixture
def memory() -> AnswerMemory:
    return AnswerMemory(LIMIT)


def test_more_than_the_limit_is_rejected_with_the_numbers(memory: AnswerMemory) -> None:
    memory.hold(900_000 + FREE_BYTES, 0)
    with pytest.raises(Overloaded, match="900000 bytes, the limit is 1000000, and this one needs"):
        memory.hold(200_000 + FREE_BYTES, 0)
    with pytest.raises(Overloaded):
        memory.check(200_000 + FREE_BYTES)
    memory.check(100_000 + FREE_BYTES)
    assert memory.held == 900_000


def test_one_alone_always_fits_and_may_grow(memory: AnswerMemory) -> None:
    held = memory.hold(2 * LIMIT, 0)
    held = memory.hold(3 * LIMIT, held)
    with pytest.raises(Overloaded):
        memory.hold(FREE_BYTES + 1, 0)
    memory.give_back(held)
    assert memory.held == 0


def test_it_is_short_above_a_half(memory: AnswerMemory) -> None:
    memory.hold(LIMIT // 2 + FREE_BYTES, 0)
    assert not memory.is_short
    memory.hold(FREE_BYTES + 1, 0)
    assert memory.is_short
