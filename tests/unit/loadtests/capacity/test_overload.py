"""The overload table says what was measured, for people and for machines."""

from __future__ import annotations

import pytest

from loadtests.capacity.overload import ideal_refused
from loadtests.openloop.arrivals import schedule


@pytest.mark.parametrize(
    ("due_s", "lead_s", "refused"),
    [([0.0, 0.0, 0.0, 0.0], 0.0, 0.5), ([0.0, 0.0, 0.0, 0.5], 0.4, 0.0), ([], 0.0, 0.0)],
)
def test_ideal_server_refuses_what_cannot_finish_in_time(
    due_s: list[float], lead_s: float, refused: float
) -> None:
    assert ideal_refused(due_s, lead_s, 0.04, 0.1) == refused


@pytest.mark.parametrize(("times", "least", "most"), [(0.7, 0, 0.001), (2, 0.49, 0.51)])
def test_ideal_server_refuses_the_excess_load(times: float, least: float, most: float) -> None:
    due_s = schedule("poisson", times / 0.006, 100.0, seed=1).tolist()
    assert least <= ideal_refused(due_s, 0.0, 0.006, 0.1) <= most
