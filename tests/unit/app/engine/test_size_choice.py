"""Which size is best; what that rests on is tested with `BatchTimes`, which keeps it."""

from __future__ import annotations

from app.engine.size_choice import SizeChoice


def test_where_nothing_is_known_a_batch_is_as_large_as_it_may_be() -> None:
    choice = SizeChoice(8, [], [])
    assert choice.efficient(1.0) == 8
    assert choice.worthwhile(4) == 4
