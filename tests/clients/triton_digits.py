"""Scores of digits by tritonclient. Arguments: host and port, .npy to read, .npz to write."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from tritonclient import http

CHUNK = 45


def scores(client: Any, rows: Any, *, binary: bool) -> Any:
    """What the server answers to some digits: its first output."""
    name = client.get_model_metadata("digits")["outputs"][0]["name"]
    given = http.InferInput("image", list(rows.shape), "FP32")
    given.set_data_from_numpy(rows, binary_data=binary)
    wanted = http.InferRequestedOutput(name, binary_data=binary)
    return client.infer("digits", [given], outputs=[wanted]).as_numpy(name)


def main() -> None:
    target, inputs, answers = sys.argv[1:]
    client, digits = http.InferenceServerClient(target), np.load(inputs)
    parts = np.array_split(digits, len(digits) // CHUNK)
    np.savez(
        answers,
        json=np.concatenate([scores(client, part, binary=False) for part in parts]),
        binary=np.concatenate([scores(client, part, binary=True) for part in parts]),
        singles=np.concatenate([scores(client, digit[None], binary=True) for digit in digits]),
    )


if __name__ == "__main__":
    main()
