"""Plain FastAPI: synchronous handlers, a pydantic body, one forward per request.

FastAPI runs such handlers in its thread pool. Event loop, HTTP parser and number of torch threads
are the same as ours.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import numpy as np
import uvicorn
from fastapi import Body, FastAPI
from pydantic import BaseModel

from loadtests.bench.peers.model import BODY, PORT, WORKERS, Model, model_here

Item = list[list[list[float]]]


class One(BaseModel):
    """One preprocessed picture: [channels, height, width]."""

    input: Item


class Many(BaseModel):
    inputs: list[Item]


class SingleResponse(BaseModel):
    """The same fields as Torchlane's prediction."""

    label: str
    score: float
    scores: list[float]


class BatchResponse(BaseModel):
    """One prediction for each input."""

    predictions: list[SingleResponse]


def create_app(model: Model) -> FastAPI:
    """Build the application for JSON bodies."""
    app = FastAPI()

    @app.post("/predict")
    def predict(body: One) -> SingleResponse:
        scores = model.scores(np.array([body.input], np.float32))
        return SingleResponse(**model.predictions(scores)[0])

    @app.post("/batch-predict")
    def batch_predict(body: Many) -> BatchResponse:
        scores = model.scores(np.array(body.inputs, np.float32))
        return BatchResponse(
            predictions=[SingleResponse(**each) for each in model.predictions(scores)]
        )

    return app


def create_binary_app(model: Model) -> FastAPI:
    """Build the application for float32 bodies."""
    app = FastAPI()

    @app.post("/predict")
    @app.post("/batch-predict")
    def predict(body: Annotated[bytes, Body(media_type="application/octet-stream")]) -> Any:
        items = model.array(body)
        predictions = model.predictions(model.scores(items))
        return {"predictions": predictions} if len(items) > 1 else predictions[0]

    return app


def create_here() -> FastAPI:
    return (create_app if os.environ[BODY] == "json" else create_binary_app)(model_here())


if __name__ == "__main__":
    uvicorn.run(
        "loadtests.bench.peers.plain_fastapi.server:create_here",
        factory=True,
        port=int(os.environ[PORT]),
        loop="uvloop",
        http="httptools",
        ws="none",
        workers=WORKERS,
        access_log=False,
        log_level="warning",
    )
