"""Rounds: the order of servers, and ratios within a round."""

from __future__ import annotations

import pytest

from loadtests.bench.measuring import Measured
from loadtests.bench.results import Spread, keys, ratios, turns, values


def measured(per_s: float) -> Measured:
    return Measured(per_s, 1, 2, cpu_us=100, checked=9)


# the machine is half as fast in the second round, where the bare answer is left out
ROUNDS = [
    {"mosec": measured(500), "bare_asgi": measured(4000), "torchlane": measured(1000)},
    {"torchlane": measured(400), "mosec": measured(200)},
]


def test_every_server_has_one_turn_per_round() -> None:
    servers = ["torchlane", "a", "b", "c"]
    rounds = [turns(servers, number) for number in range(20)]
    assert all(sorted(each) == sorted(servers) for each in rounds)
    assert {each[0] for each in rounds} == set(servers)
    assert rounds[0] == turns(servers, 0)  # so that two runs can be compared


def test_ratios_compare_within_a_round() -> None:
    assert ratios(ROUNDS, "mosec", "requests_per_s") == [2, 2]
    assert ratios(ROUNDS, "bare_asgi", "requests_per_s") == [0.25]
    assert ratios(ROUNDS, "torchlane", "requests_per_s") == []
    assert ratios(ROUNDS, "litserve", "requests_per_s") == []


def test_each_server_has_one_figure_per_round() -> None:
    assert values(ROUNDS, "torchlane", "requests_per_s") == [1000, 400]
    assert values(ROUNDS, "bare_asgi", "requests_per_s") == [4000]
    assert keys(ROUNDS) == ["torchlane", "bare_asgi", "mosec"]


def test_spread_holds_median_and_extremes() -> None:
    assert Spread.of([3, 1, 9]) == Spread(3, 1, 9)


def test_busy_is_cpu_time_per_second() -> None:
    assert measured(5000).busy == pytest.approx(0.5)
