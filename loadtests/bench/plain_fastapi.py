"""The reference: the handler that one would write first, with one forward per request.

It is synchronous, so FastAPI runs it in its thread pool. It serves the very file that Torchlane
serves, from the same folder, with the same event loop, HTTP parser, number of workers and number of
torch threads. The one file under `loadtests` that imports torch.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from models.manifest import MANIFEST_FILE, Manifest

WARM_RUNS = 3  # TorchScript's profiling executor specialises on the second and third call


class Request(BaseModel):
    """One picture, preprocessed: [channels, height, width]."""

    input: list[list[list[float]]]


class Prediction(BaseModel):
    """What Torchlane's prediction holds as well."""

    label: str
    score: float
    scores: list[float]


def create_app(folder: Path) -> FastAPI:
    """The application.

    Args:
        folder: of one version of a model with labels; its first variant is served.
    """
    manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    labels = manifest.codec.labels or ()
    torch.set_num_threads(1)
    load: Callable[[str], Any] = torch.jit.load  # untyped in torch
    model = load(str(folder / next(iter(manifest.variants.values())).file)).eval()
    with torch.inference_mode():
        for _ in range(WARM_RUNS):
            model(torch.zeros(1, *manifest.inputs[0].item_shape))
    app = FastAPI()

    @app.post("/predict")
    def predict(request: Request) -> Prediction:
        with torch.inference_mode():
            logits = model(torch.tensor([request.input]))
            scores = torch.softmax(logits[0], dim=0).tolist()
        best = max(range(len(scores)), key=scores.__getitem__)
        return Prediction(label=labels[best], score=scores[best], scores=scores)

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--artifact", type=Path, required=True, help="folder of one version")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "`torch.jit.*is deprecated")
    uvicorn.run(
        create_app(arguments.artifact),
        port=arguments.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        workers=1,
        access_log=False,
        log_level="warning",
    )
