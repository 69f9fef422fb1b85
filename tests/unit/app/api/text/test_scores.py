"""Raw scores are what a sigmoid made the scores from."""

from __future__ import annotations

import numpy as np
import pytest

from app.api.text.scores import logit
from app.codecs.answers import apply_scores


@pytest.mark.parametrize(("most", "within"), [(5, 1e-4), (11, 1e-2)])
def test_logit_inverts_the_sigmoid(most: float, within: float) -> None:
    scores = np.linspace(-most, most, 1001, dtype=np.float32)
    assert np.abs(logit(apply_scores("sigmoid", scores)) - scores).max() < within


def test_extreme_scores_stay_finite_and_ordered() -> None:
    scores = logit(apply_scores("sigmoid", np.array([-100, -20, 0, 20, 100], np.float32)))
    assert np.isfinite(scores).all()
    assert np.all(np.diff(scores) >= 0)
    assert scores[-1] == pytest.approx(16.6, abs=0.1)
    assert scores[2] == 0
