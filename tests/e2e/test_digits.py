"""Every held-out digit, as a picture and as a tensor, over HTTP: what eager PyTorch says."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from models.definitions import digits
from models.inputs.preprocess import preprocess
from models.tensors import Array
from tests.e2e.server import Server, running

CHUNK = 90


@dataclass(frozen=True)
class HeldOut:
    """The held-out set in both forms, and eager PyTorch's answers to it."""

    pngs: list[bytes]
    tensors: Array
    scores: Array


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("digits") / "log"
    with running(repository, log, cache_bytes="0", default_model="digits") as server:
        yield server


@pytest.fixture(scope="module")
def held_out(trained_digits: Path) -> HeldOut:
    eager = digits.Digits().eval()
    eager.load_state_dict(torch.load(trained_digits, weights_only=True))
    images = digits.pictures()[0][digits.split()[1]]
    pngs = [digits.png(image) for image in images]
    tensors = np.stack([preprocess(png, digits.PREPROCESS) for png in pngs])
    with torch.inference_mode():
        scores = torch.softmax(eager(torch.from_numpy(tensors)), dim=1).numpy()
    return HeldOut(pngs, tensors, scores)


def check(predictions: list[dict[str, Any]], scores: Array) -> None:
    assert [p["label"] for p in predictions] == [str(n) for n in scores.argmax(axis=1)]
    np.testing.assert_allclose([p["scores"] for p in predictions], scores, atol=1e-4)


def test_singles_as_png(server: Server, held_out: HeldOut) -> None:
    async def all_of_them() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            png = {"content-type": "image/png"}
            limit = asyncio.Semaphore(32)

            async def one(content: bytes) -> dict[str, Any]:
                async with limit:
                    answer = await client.post("/predict", content=content, headers=png)
                    return dict(answer.json()["prediction"])

            return await asyncio.gather(*(one(content) for content in held_out.pngs))

    check(asyncio.run(all_of_them()), held_out.scores)


def test_batches_of_both_kinds_mixed(server: Server, held_out: HeldOut) -> None:
    inputs: list[object] = [
        base64.b64encode(png).decode() if index % 2 else tensor.ravel().tolist()
        for index, (png, tensor) in enumerate(zip(held_out.pngs, held_out.tensors, strict=True))
    ]
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for start in range(0, len(inputs), CHUNK):
            chunk = inputs[start : start + CHUNK]
            answer = client.post("/batch-predict", json={"inputs": chunk})
            check(answer.json()["predictions"], held_out.scores[start : start + CHUNK])


def test_raw_bytes(server: Server, held_out: HeldOut) -> None:
    octets = {"content-type": "application/octet-stream", "accept": "application/octet-stream"}
    content = held_out.tensors.astype("<f4").tobytes()
    answer = httpx.post(f"{server.url}/batch-predict", content=content, headers=octets, timeout=60)
    got = np.frombuffer(answer.content, "<f4").reshape(held_out.scores.shape)
    np.testing.assert_allclose(got, held_out.scores, atol=1e-4)
