"""What is known of a version before it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from app.codecs.answers import apply_scores
from app.engine.shared_tier import fits
from app.serving.installation import layout_of
from app.types import Arrays
from models.choices import Scores
from models.tensors import Dtype, TensorSpec


@pytest.mark.parametrize("scores", ["none", "softmax", "sigmoid"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_layout_matches_finished_answers(scores: Scores, dtype: Dtype) -> None:
    outputs = (
        TensorSpec(name="y", dtype=dtype, shape=(-1, 3)),
        TensorSpec(name="ids", dtype="int64", shape=(-1, -1, 2)),
    )

    def finish(batch: Arrays) -> Arrays:
        return {**batch, "y": apply_scores(scores, batch["y"])}

    layout = layout_of(outputs, finish)
    batch = {"y": np.ones((2, 3), dtype), "ids": np.ones((2, 7, 2), np.int64)}
    answer = {name: array[0] for name, array in finish(batch).items()}
    assert fits(answer, layout)
    assert not fits({**answer, "ids": np.ones((7, 3), np.int64)}, layout)
    assert not fits({"y": answer["y"]}, layout)
