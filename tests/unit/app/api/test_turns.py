"""Connections whose clients send ahead share each turn of the event loop."""

from __future__ import annotations

import asyncio

from app.api.turns import TURN_S, Turns


class Ahead:
    """A connection that was sent many requests, each of which takes half of a turn's budget."""

    def __init__(self, name: str, turns: Turns, order: list[str], requests: int) -> None:
        self._name, self._turns, self._order, self._left = name, turns, order, requests

    def take_turn(self) -> float:
        self._order.append(self._name)
        self._left -= 1
        if self._left:
            self._turns.wait(self)
        return TURN_S / 2


async def test_connections_alternate_within_the_budget() -> None:
    turns = Turns()
    order: list[str] = []
    for name in ("a", "b", "c"):
        turns.wait(Ahead(name, turns, order, 3))
    sizes = []
    while len(order) < 9:
        before = len(order)
        await asyncio.sleep(0)
        sizes.append(len(order) - before)
    assert order == ["a", "b", "c"] * 3
    assert max(sizes) == 2  # a turn of the event loop has time for two
