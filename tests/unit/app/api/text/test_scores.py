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
