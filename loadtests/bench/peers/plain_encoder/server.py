"""Plain FastAPI around sentence-transformers: synchronous handlers, one `encode` per request.

FastAPI runs such handlers in its thread pool. Event loop and HTTP parser are the same as ours.
"""

from __future__ import annotations

import os
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

from loadtests.bench.peers.model import WEIGHTS
from loadtests.bench.peers.plain_fastapi.server import serve


class One(BaseModel):
    """A sentence."""

    input: str


class Many(BaseModel):
    """Several."""

    inputs: list[str]


class Vector(BaseModel):
    """The vector of a sentence."""

    scores: list[float]


class Vectors(BaseModel):
    """One vector for each input."""

    predictions: list[Vector]


def create_here() -> FastAPI:
    """Build the application with the model that the environment names."""
    app, model = FastAPI(), SentenceTransformer(os.environ[WEIGHTS], device="cpu")

    def encoded(texts: list[str]) -> list[Vector]:
        vectors: Any = model.encode(texts, show_progress_bar=False)
        return [Vector(scores=vector) for vector in vectors.tolist()]

    @app.post("/predict")
    def predict(body: One) -> Vector:
        return encoded([body.input])[0]

    @app.post("/batch-predict")
    def batch_predict(body: Many) -> Vectors:
        return Vectors(predictions=encoded(body.inputs))

    return app


if __name__ == "__main__":
    serve("loadtests.bench.peers.plain_encoder.server:create_here")
