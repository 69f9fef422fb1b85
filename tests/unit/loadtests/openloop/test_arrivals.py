"""Schedules: the right rate, the right spread, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from loadtests.openloop.arrivals import schedule


def test_uniform_arrivals_have_equal_gaps() -> None:
    due = schedule("uniform", 100, 0.5, seed=1)
    assert len(due) == 50
    assert np.allclose(np.diff(due), 0.01)


def test_poisson_arrivals_have_exponential_gaps() -> None:
    due = schedule("poisson", 1000, 100, seed=1)
    gaps = np.diff(due)
    assert (gaps >= 0).all()
    assert 0 <= due[0] <= due[-1] < 100
    assert len(due) == pytest.approx(100_000, rel=0.02)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.02)  # as of no other common spread
    assert np.median(gaps) == pytest.approx(gaps.mean() * np.log(2), rel=0.02)


def test_seed_determines_the_arrivals() -> None:
    first, again, other = (schedule("poisson", 50, 2, seed) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (-1, 1), (1, 0)])
def test_zero_rate_or_duration_is_refused(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="no schedule"):
        schedule("poisson", rate, seconds, 1)
