"""Outputs that are pictures: PNG files by Accept, base64 by query, numbers otherwise."""

from __future__ import annotations

import base64
import io
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from PIL import Image
from torch import nn

from app.api import answering, memory, outcomes
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.pictured import MaskOutput
from models.tensors import TensorSpec
from tests.artifacts import Y, write_artifact
from tests.integration.listening import Listening, listening
from tests.integration.wire import WireAnswer, request

pytestmark = pytest.mark.asyncio(loop_scope="module")
PNG = "image/png"
FRESH = itertools.count(10)  # inputs that no other test has asked for
SIDE = 4
MASK = TensorSpec(
    name="mask", dtype="int64", shape=(-1, SIDE, SIDE), picture=MaskOutput(palette=("#102030",))
)


class Segments(nn.Module):
    """A mask with two classes: the item's numbers; and the numbers."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, :1].long().repeat(1, 4 * 4).reshape(-1, 4, 4), x * 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Listening]:
    folder = tmp_path_factory.mktemp("models")
    write_artifact(folder, "double", module=Segments(), outputs=(MASK, Y))
    write_artifact(folder, "numbers")
    async with listening(folder, default_model="double") as made:
        yield made
        assert made.service.answers.held == made.service.offload.held == 0


@pytest.fixture(params=["on the loop", "in a thread"])
def drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pictures are drawn."""
    if request.param == "in a thread":
        monkeypatch.setattr(answering, "DRAWN_BYTES", -1)
        monkeypatch.setattr(memory, "FREE_BYTES", 0)


async def ask(server: Listening, path: str, *items: float, **headers: Any) -> WireAnswer:
    inputs: Any = [[each, 0] for each in items]
    key, value = ("inputs", inputs) if "batch" in path else ("input", inputs[0])
    return await server.ask(request(path, json.dumps({key: value}).encode(), **headers))


def classes(data: bytes | str) -> Any:
    file = data if isinstance(data, bytes) else base64.b64decode(data, validate=True)
    return np.asarray(Image.open(io.BytesIO(file))).tolist()


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("way", [{}, {"expect": "100-continue"}], ids=["fast", "asgi"])
async def test_a_file(server: Listening, way: dict[str, str]) -> None:
    first, second = next(FRESH), next(FRESH)
    for number in (first, second, second):  # the last one is in the cache
        answer = await ask(server, "/predict", number, accept="image/*, */*;q=0.8", **way)
        assert (answer.status, answer["content-type"]) == (200, PNG)
        assert classes(answer.body) == [[number] * SIDE] * SIDE


@pytest.mark.usefixtures("drawn")
async def test_base64_in_json(server: Listening) -> None:
    a, b = next(FRESH), next(FRESH)
    one = (await ask(server, "/predict?pictures=base64", a)).json()["prediction"]["outputs"]
    assert (classes(one["mask"]), one["y"]) == ([[a] * SIDE] * SIDE, [2 * a, 0])
    many = await ask(server, "/batch-predict?pictures=base64", a, b, a)
    found = [each["outputs"] for each in many.json()["predictions"]]
    assert [classes(each["mask"])[0][0] for each in found] == [a, b, a]
    must = {"accept_encoding": "gzip, identity;q=0"}
    assert (await ask(server, "/predict?pictures=base64", a, **must))["content-encoding"] == "gzip"


async def test_numbers_by_default(server: Listening) -> None:
    for path in ("/predict", "/predict?pictures=base64", "/predict"):  # the memo tells them apart
        answer = (await ask(server, path, 3)).json()["prediction"]["outputs"]["mask"]
        assert isinstance(answer, str) is ("pictures" in path)
    triton = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [3, 0]}]}
    path = "/v2/models/double/infer"
    answered = await server.ask(request(path, json.dumps(triton).encode()))
    assert answered.json()["outputs"][0]["data"] == [3] * SIDE**2


@pytest.mark.parametrize(
    ("status", "path", "headers", "message"),
    [
        (406, "/batch-predict", {"accept": PNG}, "can only be application/json"),
        (406, "/models/numbers/predict", {"accept": PNG}, "application/json or application/octet"),
        (406, "/predict?pictures=base64", {"accept": PNG}, "omit pictures, or accept application"),
        (422, "/predict?pictures=png", {}, "pictures must be base64"),
        (422, "/predict?pictures=base64&pictures=base64", {}, "base64 and base64"),
        (422, "/models/numbers/predict?pictures=base64", {}, "no output of this model"),
        (400, "/predict?picture=base64", {}, "pictures"),
        (400, "/v2/models/double/infer?pictures=base64", {}, "pictures"),
    ],
)
async def test_refusals(
    server: Listening, status: int, path: str, headers: dict[str, str], message: str
) -> None:
    answer = await ask(server, path, 1, **headers)
    assert answer.status == status
    assert message in answer.json()["error"]


async def test_a_class_that_no_file_can_have(server: Listening) -> None:
    answer = await ask(server, "/predict", 300, accept=PNG)
    assert (answer.status, answer.code) == (406, "not_acceptable")
    assert "classes from 300 to 300" in answer.json()["error"]


class Bright(nn.Module):
    """The bright pixels of a picture."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x > 0.5).long()[:, 0]


@pytest.mark.usefixtures("drawn")
async def test_a_mask_has_the_size_of_the_callers_picture(tmp_path: Path) -> None:
    how = PicturePreprocess(width=SIDE, height=SIDE, channels=1, mean=(0.0,), std=(1.0,))
    write_artifact(
        *(tmp_path, "bright", 1, Bright()),
        inputs=(TensorSpec(name="x", dtype="float32", shape=(-1, 1, SIDE, SIDE)),),
        outputs=(MASK,),
        codec=ImageCodecSpec(preprocess=how, masks=("mask",)),
        golden=[{"x": np.zeros((1, SIDE, SIDE), np.float32)}],
    )
    pixels = np.zeros((2 * SIDE, 2 * SIDE), np.uint8)
    pixels[:, SIDE:] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    async with listening(tmp_path, default_model="bright") as server:
        sent = request("/predict", file.getvalue(), content_type=PNG, accept=PNG)
        answer = await server.ask(sent)
        assert classes(answer.body) == (pixels // 255).tolist()


class Scores(nn.Module):
    """Two scores for each pixel of a picture, and one that nobody asks for."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.cat((0.5 - x, x - 0.5), 1)
        return scores, scores


async def test_scores_of_a_large_picture_are_drawn_but_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores would be eight times as large as the classes."""
    how = PicturePreprocess(width=SIDE, height=SIDE, channels=1, mean=(0.0,), std=(1.0,))
    spec = TensorSpec(name="mask", dtype="float32", shape=(-1, 2, SIDE, SIDE))
    write_artifact(
        *(tmp_path, "scores", 1, Scores()),
        inputs=(TensorSpec(name="x", dtype="float32", shape=(-1, 1, SIDE, SIDE)),),
        outputs=(
            spec.model_copy(update={"picture": MaskOutput()}),
            spec.model_copy(update={"name": "other"}),
        ),
        codec=ImageCodecSpec(preprocess=how, masks=("mask", "other")),
        golden=[{"x": np.zeros((1, SIDE, SIDE), np.float32)}],
    )
    pixels = np.zeros((20 * SIDE, 20 * SIDE), np.uint8)
    pixels[:, 10 * SIDE :] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    most = 8 * pixels.size
    async with listening(tmp_path, default_model="scores", max_answer_bytes=most) as server:
        sent = request("/predict", file.getvalue(), content_type=PNG, accept=PNG)
        assert classes((await server.ask(sent)).body) == (pixels // 255).tolist()
        refused = await server.ask(request("/predict", file.getvalue(), content_type=PNG))
        assert (refused.status, refused.code) == (413, "payload_too_large")
        told = "or request only the class of each pixel, by /predict with Accept: image/png"
        assert told in refused.json()["error"]
        monkeypatch.setattr(outcomes, "MAX_DRAWN_SCORES", 2 * pixels.size - 1)
        bounded = await server.ask(sent)
        assert (bounded.status, bounded.code) == (413, "payload_too_large")
        assert f"needs {2 * pixels.size} scores" in bounded.json()["error"]
