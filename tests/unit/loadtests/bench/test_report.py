"""Figures of a benchmark: what is compared with what, and what does not count."""

from __future__ import annotations

import numpy as np
import pytest

from loadtests.bench import counters
from loadtests.bench.counters import CheckError, check_compiled, items_computed
from loadtests.bench.measuring import TurnFigures, check_same
from loadtests.bench.report import Spread, ratios, turns, values
from loadtests.bench.workloads import MOSEC, OURS

PAGE = """\
# TYPE torchlane_items_computed counter
torchlane_items_computed_total{model="digits",version="1"} 40
torchlane_items_computed_total{model="digits",version="2"} 2
torchlane_items_computed_total{model="other",version="1"} 7
"""


def measured(per_s: float) -> TurnFigures:
    return TurnFigures(per_s, 1.0, 2.0, 1e5 / per_s)


def test_ratios_compare_within_a_round() -> None:
    rounds = [
        {OURS: measured(200), MOSEC: measured(100)},
        {OURS: measured(20), MOSEC: measured(5)},  # both were slowed
        {OURS: measured(300)},  # mosec was left out
    ]
    assert ratios(rounds, MOSEC, "requests_per_s") == [2, 4]
    assert ratios(rounds, OURS, "requests_per_s") == []
    assert values(rounds, OURS, "requests_per_s") == [200, 20, 300]
    assert Spread.of([3.0, 9.0, 4.0]) == Spread(median=4.0, low=3.0, high=9.0)


def test_every_server_has_one_turn_per_round() -> None:
    orders = [turns(["a", "b", "c"], number) for number in range(50)]
    assert all(sorted(each) == ["a", "b", "c"] for each in orders)
    assert len({tuple(each) for each in orders}) == 6


def test_servers_must_compute_the_same() -> None:
    ours = np.linspace(0, 1, 16).reshape(8, 1, 2)
    check_same(ours, ours + 5e-5)
    check_same(ours, None)  # computes nothing
    for theirs in (ours + 5e-4, np.full_like(ours, np.nan), ours[:, :, :1]):
        with pytest.raises(CheckError):
            check_same(ours, theirs)
    with pytest.raises(CheckError, match="proves nothing"):
        check_same(np.ones((8, 1, 2)), np.ones((8, 1, 2)))


@pytest.mark.parametrize(("added", "cached"), [(99, False), (1, True)])
def test_answers_from_elsewhere_do_not_count(added: float, cached: bool) -> None:
    counters.check(0 if cached else 103, 100, cached=cached)  # three had no answer yet
    with pytest.raises(CheckError, match=r"100 \w+ items were answered"):
        counters.check(added, 100, cached=cached)


def test_compiled_server_must_report_it() -> None:
    page = '# TYPE torchlane_build_info gauge\ntorchlane_build_info{{compiled="{}"}} 1\n'
    check_compiled(page.format("true"))
    for other in (page.format("false"), PAGE):
        with pytest.raises(CheckError, match="must say"):
            check_compiled(other)


def test_items_of_one_model_are_counted() -> None:
    assert items_computed(PAGE, "digits") == 42
    with pytest.raises(CheckError, match="of mean"):
        items_computed(PAGE, "mean")
