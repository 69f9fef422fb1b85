"""KServe's server for the same work: one forward per request, because it forms no batches."""

from __future__ import annotations

import os

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer

from loadtests.bench.peers.model import PORT, WORKERS, model_here


class Predict(Model):  # type: ignore[misc]
    """Accepts one FP32 input [n, *shape], returns one FP32 output [n, k]."""

    def __init__(self) -> None:
        super().__init__("model")
        self._model = model_here()
        self.ready = True

    async def predict(
        self, payload: InferRequest, headers: dict[str, str] | None = None, *_: object
    ) -> InferResponse:
        """Run a forward on the event loop: a thread would cost more than the forward."""
        given = payload.inputs[0].as_numpy().astype(np.float32, copy=False)
        scores = self._model.scores(given.reshape(-1, *self._model.shape))
        made = InferOutput("scores", list(scores.shape), "FP32")
        made.set_data_from_numpy(scores, binary_data=payload.use_binary_outputs)
        return InferResponse(payload.id or "none", self.name, [made])  # KServe rejects None


if __name__ == "__main__":
    server = ModelServer(
        http_port=int(os.environ[PORT]), workers=WORKERS, enable_grpc=False, access_log_format=None
    )
    server.start([Predict()])
