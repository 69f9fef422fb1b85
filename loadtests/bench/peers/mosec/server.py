"""mosec for the same work: one worker process, batches of up to 64."""

from __future__ import annotations

import os
import sys
from typing import Any

import orjson
from mosec import Server, Worker

from loadtests.bench.peers.model import (
    BODY,
    MAX_BATCH,
    PORT,
    WORKERS,
    ItemRequest,
    model_here,
    parse_request,
)

# 0 is its best value here, but `max_wait_time=0` would mean 10: only this deprecated option can set
# 0. A single request does not wait, and the queue fills while the worker computes.
MAX_WAIT_MS = 0
TIMEOUT_MS, CAPACITY = "30000", "1024"  # mosec drops older requests, and rejects more
MAX_BODY_BYTES = 64 * 1024 * 1024


class MosecWorker(Worker):  # type: ignore[misc]
    """Accepts {"input": X} or {"inputs": [X, ...]}, or float32 of one or more items."""

    def __init__(self) -> None:
        super().__init__()
        self._model = model_here()
        self._is_json = os.environ[BODY] == "json"

    def deserialize(self, data: bytes) -> ItemRequest:
        if not self._is_json:
            items = self._model.array(data)
            return len(items) > 1, items
        return parse_request(orjson.loads(data))

    def forward(self, data: list[ItemRequest]) -> list[Any]:
        return self._model.answers(data)

    def serialize(self, data: Any) -> bytes:
        return orjson.dumps(data)


if __name__ == "__main__":
    sys.argv += ["--address", "127.0.0.1", "--port", os.environ[PORT], "--log-level", "error"]
    sys.argv += ["--wait", str(MAX_WAIT_MS)]
    sys.argv += ["--capacity", CAPACITY]
    sys.argv += ["--timeout", TIMEOUT_MS, "--max-request-size", str(MAX_BODY_BYTES)]
    server = Server()
    server.append_worker(
        MosecWorker,
        num=WORKERS,
        max_batch_size=MAX_BATCH,
        max_wait_time=MAX_WAIT_MS,
        route="/predict",
    )
    server.run()
