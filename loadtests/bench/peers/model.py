"""The common computation of all peers: an artifact's plain script, or the forms of its plan.

Runs in the peers' own environments, which have torch, numpy and pydantic. Peers read their options
from environment variables, because some start their workers as new processes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from models.forms import load_form
from models.manifest import MANIFEST_FILE, Manifest
from models.plan import Form, Step, form_at
from models.runtimes import File
from models.tensors import Array

ARTIFACT, BODY, PORT = "BENCH_ARTIFACT", "BENCH_BODY", "BENCH_PORT"
WEIGHTS = "BENCH_WEIGHTS"  # a folder as transformers writes it
WORKERS = int(os.environ.get("BENCH_WORKERS", "1"))  # processes that run the model
MAX_BATCH = 64
WARM_RUNS = 3  # TorchScript's profiling executor specialises on the second and third call
SCRIPTS = ("script", "trace")
Forward = Callable[..., torch.Tensor]  # accepts the inputs in the order of the manifest
BodyKind = Literal["json", "binary"]
Asked = tuple[bool, Array]  # whether a request is a batch, and its items [n, *shape]


class Model:
    """One artifact with one input and one relevant output, on one thread.

    Attributes:
        shape: of one item.
        labels: of the scores; empty if the model has none.
    """

    def __init__(self, folder: Path, forward: Literal["script", "plan"]) -> None:
        manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
        self.shape = manifest.inputs[0].item_shape
        self.labels = manifest.codec.labels or ()
        self._softmax = manifest.codec.scores == "softmax"
        self._forward = forward_of(folder, manifest, forward)
        for size in (1, 2, 4, 8, 16, 32, MAX_BATCH):
            for _ in range(WARM_RUNS):
                self.scores(np.zeros((size, *self.shape), np.float32))

    def scores(self, batch: Array) -> Array:
        """float32 [n, *shape] -> float32 [n, k]."""
        with torch.inference_mode():
            outputs = self._forward(torch.from_numpy(batch))
            if self._softmax:
                outputs = torch.softmax(outputs, dim=1)
            made: Array = outputs.numpy()
            return made

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

    def answers(self, requests: list[Asked]) -> list[Any]:
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


def asked_for(body: dict[str, Any]) -> Asked:
    """Parse {"input": X} or {"inputs": [X, ...]}."""
    if "input" in body:
        return False, np.array([body["input"]], np.float32)
    return True, np.array(body["inputs"], np.float32)


def model_here() -> Model:
    """Load the model that the environment names."""
    return Model(Path(os.environ[ARTIFACT]), "script")


def forward_of(folder: Path, manifest: Manifest, forward: Literal["script", "plan"]) -> Forward:
    """Load the artifact's plain script, or its plan's forms, on one thread of this process."""
    warnings.filterwarnings("ignore", "`torch.jit.*is deprecated")
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    torch.set_num_threads(1)
    return (_planned if forward == "plan" else _script)(folder, manifest)


def _script(folder: Path, manifest: Manifest) -> Forward:
    """Load as a user would: only `torch.jit.load`."""
    name = next(name for name in SCRIPTS if name in manifest.variants)
    load: Callable[[str], Any] = torch.jit.load  # untyped in torch
    module = load(str(folder / manifest.variants[name].file)).eval()
    return lambda *batch: _first(module(*batch))


def _planned(folder: Path, manifest: Manifest) -> Forward:
    """Load what our server runs: at each batch size the fastest form at export."""
    steps = _steps(manifest)
    forwards = {}
    for form in {step.form for step in steps}:
        variant = manifest.variants[form.variant]
        forwards[form] = load_form(
            [File.at(folder / name, manifest.files[name].sha256) for name in variant.files],
            variant.format,
            manifest.inputs,
            torch.device("cpu"),
            optimized=form.optimized,
        )
    return lambda *batch: _first(forwards[form_at(steps, len(batch[0]))](*batch))


def _steps(manifest: Manifest) -> tuple[Step, ...]:
    planned = manifest.plan.on("cpu") if manifest.plan else None
    if manifest.plan is not None and planned is not None:
        return planned.steps[manifest.plan.precision]
    return (Step(up_to=MAX_BATCH, form=Form(variant=next(iter(manifest.variants)))),)


def _first(outputs: Any) -> torch.Tensor:
    made: torch.Tensor = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
    return made
