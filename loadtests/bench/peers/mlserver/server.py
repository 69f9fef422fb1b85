"""MLServer for the same work: a custom runtime with its adaptive batching, V2 protocol."""

from __future__ import annotations

import numpy as np
from mlserver import MLModel
from mlserver.types import (
    InferenceRequest,
    InferenceResponse,
    ResponseOutput,
)

from loadtests.bench.peers.model import Model, model_here


class Predict(MLModel):  # type: ignore[misc]
    """Accepts one FP32 input [n, *shape], returns one FP32 output [n, k]."""

    _model: Model

    async def load(self) -> bool:
        """Load the model."""
        self._model = model_here()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run one forward for a merged request."""
        given = payload.inputs[0]
        batch = np.array(given.data.root, np.float32).reshape(-1, *self._model.shape)
        scores = self._model.scores(batch)
        made = ResponseOutput(
            name="scores",
            shape=list(scores.shape),
            datatype="FP32",
            data=scores.ravel().tolist(),
        )
        return InferenceResponse(model_name=self.name, outputs=[made])
