"""The common computation of all peers: an artifact's plain script.

Runs in the peers' own environments, which have torch, numpy and pydantic. Peers read their options
from environment variables, because some start their workers as new processes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.manifest import MANIFEST_FILE, Manifest
from models.tensors import Array

ARTIFACT, BODY, PORT = "BENCH_ARTIFACT", "BENCH_BODY", "BENCH_PORT"
WORKERS = int(os.environ.get("BENCH_WORKERS", "1"))  # processes that run the model
MAX_BATCH = 64
WARM_RUNS = 3  # TorchScript's profiling executor specialises on the second and third call
SCRIPTS = ("script", "trace")
Forward = Callable[..., torch.Tensor]  # accepts the inputs in the order of the manifest
ItemRequest = tuple[bool, Array]  # whether a request is a batch, and its items [n, *shape]


class Model:
    """One artifact with one input and one relevant output, on one thread.

    Attributes:
        labels: of the scores; empty if the model has none.
    """

    def __init__(self, folder: Path) -> None:
        manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
        self.shape = manifest.inputs[0].item_shape
        self.labels = manifest.codec.labels or ()
        self._softmax = manifest.codec.scores == "softmax"
        self._forward = forward_of(folder, manifest)
        for size in (1, 2, 4, 8, 16, 32, MAX_BATCH):
            for _ in range(WARM_RUNS):
                self.scores(np.zeros((size, *self.shape), np.float32))

    def scores(self, batch: Array) -> Array:
        """float32 [n, *shape] -> float32 [n, k]."""
        with torch.inference_mode():
            outputs = self._forward(torch.from_numpy(batch))
            if self._softmax:
                outputs = torch.softmax(outputs, dim=1)
            array: Array = outputs.numpy()
            return array

    def array(self, content: bytes) -> Array:
        """Parse little-endian float32 of one or more items -> [n, *shape]."""
        return np.frombuffer(content, "<f4").reshape(-1, *self.shape)

    def predictions(self, scores: Array) -> list[dict[str, Any]]:
        """Return the prediction for each item, from scores [n, k]."""
        rows: list[list[float]] = scores.tolist()
        if not self.labels:
            return [{"scores": row} for row in rows]
        best: list[int] = scores.argmax(axis=1).tolist()
        return [
            {"label": self.labels[at], "score": row[at], "scores": row}
            for at, row in zip(best, rows, strict=True)
        ]

    def answers(self, requests: list[ItemRequest]) -> list[Any]:
        """Return the answer to each request, with one forward for the items of all."""
        items = [array for _, array in requests]
        scores = self.scores(items[0] if len(items) == 1 else np.concatenate(items))
        predictions = self.predictions(scores)
        answers: list[Any] = []
        at = 0
        for many, array in requests:
            rows = predictions[at : at + len(array)]
            answers.append({"predictions": rows} if many else rows[0])
            at += len(array)
        return answers


def parse_request(body: dict[str, Any]) -> ItemRequest:
    """Parse {"input": X} or {"inputs": [X, ...]}."""
    if "input" in body:
        return False, np.array([body["input"]], np.float32)
    return True, np.array(body["inputs"], np.float32)


def model_here() -> Model:
    return Model(Path(os.environ[ARTIFACT]))


def forward_of(folder: Path, manifest: Manifest) -> Forward:
    """Load the plain script as a user would, only by `torch.jit.load`, for one thread."""
    warnings.filterwarnings("ignore", "`torch.jit.*is deprecated")
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    torch.set_num_threads(1)
    name = next(name for name in SCRIPTS if name in manifest.variants)
    load: Callable[[str], Any] = torch.jit.load  # untyped in torch
    module = load(str(folder / manifest.variants[name].file)).eval()

    def forward(*batch: torch.Tensor) -> torch.Tensor:
        outputs = module(*batch)
        first: torch.Tensor = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        return first

    return forward
