"""Scores as clients request them: the model's scores, or its raw scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.api.text.fields import flag
from app.errors import InvalidInput
from app.registry.loaded_models import LoadedModel
from app.types import Array

# The last float32 before 1 gives a logit of 16.6, the maximum.
LEAST = 2.0**-24


def wants_raw(document: Mapping[str, Any], model: LoadedModel) -> bool:
    """Whether a body requests `raw_scores`.

    Raises:
        InvalidInput: if the model cannot return them.
    """
    raw = flag(document, "raw_scores")
    if raw and model.manifest.codec.scores == "softmax":
        raise InvalidInput(
            f"model {model.id.name!r} returns the softmax of its scores, which cannot be undone; "
            "omit 'raw_scores', or export the model with other scores",
            [{"param": "raw_scores"}],
        )
    return raw


def scores_of(model: LoadedModel, arrays: Sequence[Array], *, raw: bool) -> list[Array]:
    """Finished outputs as scores; `raw` undoes a sigmoid, to about 0.01 between -11 and 11."""
    if not raw or model.manifest.codec.scores != "sigmoid":
        return list(arrays)
    return [logit(each) for each in arrays]


def logit(scores: Array) -> Array:
    """The inverse of a sigmoid, between -16.6 and 16.6."""
    inside = np.clip(scores.astype(np.float64), LEAST, 1 - LEAST)
    return np.asarray(np.log(inside) - np.log1p(-inside), np.float32)
