"""LitServe for the same work: one worker process, batches of up to 64 within a millisecond."""

from __future__ import annotations

import os
from typing import Any

import litserve

from loadtests.bench.peers.model import (
    MAX_BATCH,
    PORT,
    WORKERS,
    ItemRequest,
    Model,
    model_here,
    parse_request,
)

BATCH_TIMEOUT_S = 0.001
TIMEOUT_S = 30.0


class LitServeApi(litserve.LitAPI):  # type: ignore[misc]
    """Accepts {"input": X} or {"inputs": [X, ...]}."""

    _model: Model

    def setup(self, device: str) -> None:
        self._model = model_here()

    # LitServe treats an annotated `request` as a query parameter or a pydantic body; without an
    # annotation it passes the parsed JSON.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        return parse_request(request)

    def batch(self, inputs: list[ItemRequest]) -> list[ItemRequest]:
        return inputs

    def predict(self, x: list[ItemRequest]) -> list[Any]:
        return self._model.answers(x)

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> Any:
        return output


if __name__ == "__main__":
    api = LitServeApi(max_batch_size=MAX_BATCH, batch_timeout=BATCH_TIMEOUT_S)
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=WORKERS,
        timeout=TIMEOUT_S,
        fast_queue=False,  # its worker would spin and take the core from the server
    )
    server.run(
        host="127.0.0.1",
        port=int(os.environ[PORT]),
        num_api_servers=WORKERS,
        log_level="error",
        generate_client_file=False,
    )
