"""A scriptable second cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from app.engine.keys import KeyMaker
from app.engine.shared_tier import Found, NotFound, SharedTier
from app.types import Arrays
from tests.unit.app.engine.harness import item

IDENTITY = "digest:fake"  # as the harness publishes its model


class ScriptedTier(SharedTier):
    """Answers at the end of the next turn, unless it is held; keeps what it is told to.

    Attributes:
        values: what it has, by key.
        asked: the keys of each question.
        held: answers wait for `release`.
        given_up: questions of which the answer came too late.
        kept: keys of the values that were offered.
    """

    budget_s = 0.005
    is_open = False
    round_trip_s = 0.0

    def __init__(self) -> None:
        self.values: dict[bytes, Found] = {}
        self.asked: list[list[bytes]] = []
        self.held = False
        self.given_up = 0
        self.kept: list[bytes] = []
        self._late: list[Callable[[], None]] = []

    def find(
        self, keys: Sequence[bytes], answered: Callable[[Sequence[Found]], None]
    ) -> Callable[[], None]:
        """See `SharedTier`."""
        self.asked.append(list(keys))

        def answer() -> None:
            answered([self.values.get(key, NotFound.MISS) for key in keys])

        if self.held:
            self._late.append(answer)
        else:
            asyncio.get_running_loop().call_soon(answer)
        return self._give_up

    def keep(self, key: bytes, value: Arrays) -> None:
        """See `SharedTier`."""
        self.kept.append(key)

    def release(self) -> None:
        """Answer what was held; also what nobody waits for any more."""
        self.held = False
        late, self._late = self._late, []
        for answer in late:
            answer()

    def has(self, *numbers: float) -> None:
        """Have the right predictions for these, plus a half that tells them from computed ones."""
        for number in numbers:
            self.values[key_of(number)] = {"value": np.array([2 * number + 0.5], np.float32)}

    def _give_up(self) -> None:
        self.given_up += 1


def key_of(number: float) -> bytes:
    """The key of the harness's item for a number."""
    return KeyMaker(IDENTITY).key(item(number))
