"""How many lines a log gets from clients that cause any number of them."""

from __future__ import annotations

from app.telemetry.line_rate import LineRate


def test_a_burst_and_then_a_rate() -> None:
    rate = LineRate(3, 2)
    assert [rate.allows(100) for _ in range(5)] == [True] * 3 + [False] * 2
    assert [rate.allows(100.4), rate.allows(100.5)] == [False, True]
    assert sum(rate.allows(200) for _ in range(9)) == 3  # time without lines saves no more
    assert (rate.take_left_out(), rate.take_left_out()) == (9, 0)
