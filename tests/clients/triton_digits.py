"""Scores of digits by tritonclient.

Arguments: host and port of HTTP, and of gRPC, .npy to read, .npz to write.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from tritonclient import grpc, http

CHUNK = 45


def scores_by_grpc(client: Any, name: str, rows: Any) -> Any:
    """The same by gRPC."""
    given = grpc.InferInput("image", list(rows.shape), "FP32")
    given.set_data_from_numpy(rows)
    return client.infer("digits", [given]).as_numpy(name)


def scores(client: Any, rows: Any, *, binary: bool) -> Any:
    """What the server answers to some digits: its first output."""
    name = client.get_model_metadata("digits")["outputs"][0]["name"]
    given = http.InferInput("image", list(rows.shape), "FP32")
    given.set_data_from_numpy(rows, binary_data=binary)
    wanted = http.InferRequestedOutput(name, binary_data=binary)
    return client.infer("digits", [given], outputs=[wanted]).as_numpy(name)


def main() -> None:
    target, grpc_target, inputs, answers = sys.argv[1:]
    client, digits = http.InferenceServerClient(target), np.load(inputs)
    parts = np.array_split(digits, len(digits) // CHUNK)
    by_grpc = grpc.InferenceServerClient(grpc_target)
    name = client.get_model_metadata("digits")["outputs"][0]["name"]
    np.savez(
        answers,
        json=np.concatenate([scores(client, part, binary=False) for part in parts]),
        binary=np.concatenate([scores(client, part, binary=True) for part in parts]),
        grpc=np.concatenate([scores_by_grpc(by_grpc, name, part) for part in parts]),
        singles=np.concatenate([scores(client, digit[None], binary=True) for digit in digits]),
    )


if __name__ == "__main__":
    main()
