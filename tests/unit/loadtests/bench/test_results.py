"""Rounds: the order of servers, and ratios of neighbours."""

from __future__ import annotations

import pytest

from loadtests.bench.measuring import Measured
from loadtests.bench.results import Entry, Spread, interleaved, keys, ratios, values


def entry(key: str, per_s: float, p50_ms: float = 1.0) -> Entry:
    return Entry(key, Measured(per_s, p50_ms, 2 * p50_ms, cpu_us=100, checked=9))


# the machine is twice as fast in the second half of each round
ROUNDS = [
    [
        entry("torchlane", 1000),
        entry("mosec", 500),
        entry("torchlane", 1000),
        entry("bare_asgi", 4000),
        entry("torchlane", 2000),
    ],
    [entry("torchlane", 600), entry("mosec", 200), entry("torchlane", 200)],
]


def test_ours_is_measured_first_and_last_and_among_the_others() -> None:
    assert interleaved(["a"]) == ["torchlane", "a", "torchlane"]
    assert interleaved(["a", "b", "c", "d"]) == [
        *("torchlane", "a", "b", "c"),
        *("torchlane", "d", "torchlane"),
    ]


def test_ratios_are_of_neighbours_in_each_round() -> None:
    assert ratios(ROUNDS, "mosec", "requests_per_s") == [2, 2]
    assert ratios(ROUNDS, "bare_asgi", "requests_per_s") == [0.375]
    assert ratios(ROUNDS, "torchlane", "requests_per_s") == []
    assert ratios(ROUNDS, "litserve", "requests_per_s") == []


def test_ours_has_one_figure_a_round() -> None:
    assert values(ROUNDS, "torchlane", "requests_per_s") == pytest.approx([4000 / 3, 400])
    assert values(ROUNDS, "bare_asgi", "requests_per_s") == [4000]
    assert keys(ROUNDS) == ["torchlane", "mosec", "bare_asgi"]


def test_spread_is_the_median_between_the_extremes() -> None:
    assert Spread.of([3, 1, 9]) == Spread(3, 1, 9)


def test_how_busy_a_server_was_is_processor_time_per_second() -> None:
    assert entry("mosec", per_s=5000).measured.busy == pytest.approx(0.5)
