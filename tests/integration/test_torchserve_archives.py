"""TorchServe's archives with handlers of their own, made by its archiver, exported and served."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from export.cli import main
from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.integration.listening import Listening, listening, until
from tests.integration.wire import request
from tests.unit.export.torchscripts import archived, scripted

LABELS = {"0": "red", "1": ["n1", "green"], "2": "blue"}
COLOURS = """
import torch
from ts.torch_handler.image_classifier import ImageClassifier
from ts.utils.util import map_class_to_label

class Colours(ImageClassifier):
    topk = 2

    @staticmethod
    def image_processing(picture):
        numbers = torch.tensor(list(picture.convert("RGB").getdata()), dtype=torch.float32)
        return numbers.T.reshape(3, picture.height, picture.width) / 255
"""
WORDS = """
import json
import logging
import os
import torch
from ts.handler_utils.timer import timed
from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import map_class_to_label

class Words(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        folder = context.system_properties["model_dir"]
        with open(os.path.join(folder, "words.json")) as file:
            self.words = json.load(file)

    @timed
    def preprocess(self, data):
        rows = []
        for row in data:
            text = row.get("data") or row.get("body")
            text = text.decode() if isinstance(text, (bytes, bytearray)) else text
            rows.append(([self.words.get(word, 0) for word in text.split()] + [0] * 4)[:4])
        return torch.tensor(rows)

    def postprocess(self, data):
        self.context.metrics.add_counter("Texts", len(data))
        return map_class_to_label(torch.softmax(data[0], 1).tolist(), self.mapping)
"""
DETECTOR = """
from ts.torch_handler.object_detector import ObjectDetector

class Detector(ObjectDetector):
    threshold = 0.4
"""
DETECTOR_MODEL = """
import torch
from torch import nn

class Finder(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, pictures):
        scores = torch.tensor([0.9, 0.1, 0.4])
        boxes = torch.arange(12.0).reshape(3, 4) * self.scale
        return [{"boxes": boxes, "labels": torch.tensor([0, 1, 2]), "scores": scores}
                for _ in pictures]
"""
ALONE = """
import os
import torch
from ts.utils.util import PredictionException

model = None

def handle(data, context):
    global model
    if data is None:
        path = context.manifest["model"]["serializedFile"]
        model = torch.jit.load(os.path.join(context.system_properties["model_dir"], path))
        return None
    if "wrong" in data[0]:
        raise PredictionException("what is wrong?", 422)
    context.set_response_content_type(0, "text/csv")
    sums = model(torch.tensor([row["body"] for row in data], dtype=torch.float32))
    return [",".join(str(each) for each in row) for row in sums.tolist()]
"""
PREPARES = """
import torch
from ts.torch_handler.base_handler import BaseHandler

class Prepares(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row["body"]["numbers"] for row in data]) / 10
"""

COMMON = """
import os
import torch
from ts.torch_handler.base_handler import BaseHandler

class Common(BaseHandler):
    def initialize(self, context):
        folder = context.system_properties["model_dir"]
        self.device = torch.device("cpu")
        self.model = torch.jit.load(os.path.join(folder, "sums.pt"))
"""
LOADS = """
import torch
from common import Common

class Loads(Common):
    def preprocess(self, data):
        return torch.tensor([row["body"]["numbers"] for row in data]) / 10
"""


class Sums(nn.Module):
    """x [n, 3] -> [n, 3]: each colour's part of the sum, times 4."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 4 * x / x.sum(1, keepdim=True)


class MeanColours(nn.Module):
    """A picture [n, 3, 2, 2] -> the mean of each channel, times 4."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 4 * x.mean(dim=(2, 3))


class Counts(nn.Module):
    """ids [n, 4] -> a tuple of one: how often 1, 2 and 3 occur."""

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.stack([(ids == each).sum(1).float() for each in (1, 2, 3)], dim=1),)


class CountsAlone(nn.Module):
    """As `Counts`, but as this server exports it."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([(ids == each).sum(1).float() for each in (1, 2, 3)], dim=1)


def picture() -> bytes:
    file = io.BytesIO()
    colours = np.array([[[255, 0, 0], [255, 51, 0]], [[255, 0, 0], [0, 255, 0]]], np.uint8)
    Image.fromarray(colours).save(file, "PNG")
    return file.getvalue()


def softmax(*values: float) -> list[float]:
    return torch.softmax(torch.tensor(values), 0).tolist()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Listening]:
    repository = tmp_path / "repository"
    for name, module, item in (
        ("net", MeanColours(), np.ones((3, 2, 2), np.float32)),
        ("counts", CountsAlone(), np.ones(4, np.int64)),
        ("sums", Sums(), np.ones(3, np.float32)),
    ):
        spec = TensorSpec(name="x", dtype=item.dtype.name, shape=(-1, *item.shape))
        found = TensorSpec(name="y", dtype="float32", shape=(-1, 3))
        write_artifact(
            repository, name, 1, module, inputs=(spec,), outputs=(found,), golden=[{"x": item}]
        )
    async with listening(repository, handlers="on", reload_s=0.05) as server:
        yield server
        server.asgi.clear()


async def export(server: Listening, mar: Path, example: Path, *options: str) -> None:
    """Export an archive's handler as `own`, and wait until it is served."""
    address = f"http://127.0.0.1:{server.port}"
    arguments = ["handler", str(mar), "--name", "own", "--example", str(example)]
    arguments += ["--out", str(mar.parent / "repository"), "--server", address, *options]
    assert await asyncio.to_thread(main, arguments, {}) == 0
    await until(lambda: server.service.loaded.handler("own") is not None)


async def asked(
    server: Listening, body: bytes, path: str = "predict", content_type: str = "application/json"
) -> Any:
    data = request(f"/models/own/{path}", body, content_type=content_type)
    answer = await server.ask(data)
    assert answer.status == 200, answer.body
    return answer.json()


async def test_an_image_classifier_uses_the_served_model(server: Listening, tmp_path: Path) -> None:
    (tmp_path / "colours.py").write_text(COLOURS)
    (tmp_path / "example.png").write_bytes(picture())
    files = {"net.pt": scripted(MeanColours()), "index_to_name.json": json.dumps(LABELS).encode()}
    mar = archived(tmp_path, files, "--handler", "colours.py")
    await export(server, mar, tmp_path / "example.png", "--model", "net")
    red, green, _ = softmax(4 * 0.75, 4 * 0.3, 0.0)
    got = await asked(server, picture(), content_type="image/png")
    assert got == pytest.approx({"red": red, "green": green})
    assert list(got) == ["red", "green"]
    handler = server.service.loaded.handler("own")
    assert handler is not None
    assert await server.metric("torchlane_items_total", model="net") >= 2
    assert "net.pt" not in {path.name for path in _files(tmp_path)}


@pytest.mark.soak
async def test_a_text_classifier_has_files_of_its_own_and_batches(
    server: Listening, tmp_path: Path
) -> None:
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "example.txt").write_text("red blue red")
    (tmp_path / "model-config.yaml").write_text("minWorkers: 1\nbatchSize: 4  # at most\n")
    files = {
        "counts.pt": scripted(Counts()),
        "index_to_name.json": json.dumps(LABELS).encode(),
        "words.json": json.dumps({"red": 1, "green": 2, "blue": 3}).encode(),
    }
    options = ("--handler", "words.py", "--config-file", "model-config.yaml")
    mar = archived(tmp_path, files, *options)
    await export(server, mar, tmp_path / "example.txt", "--model", "counts/1")
    handler = server.service.loaded.handler("own")
    assert handler is not None
    assert handler.manifest.limits.max_batch_size == 4
    expected = dict(zip(("red", "green", "blue"), softmax(2.0, 0.0, 1.0), strict=True))
    assert await asked(server, b"red blue red", content_type="text/plain") == pytest.approx(
        expected
    )
    many = await asked(server, b'{"inputs": ["red red blue", "green"]}', "batch-predict")
    assert many["predictions"][0] == pytest.approx(expected)
    assert max(many["predictions"][1], key=many["predictions"][1].get) == "green"


@pytest.mark.soak
async def test_a_detector_runs_the_archives_own_eager_model(
    server: Listening, tmp_path: Path
) -> None:
    (tmp_path / "detector.py").write_text(DETECTOR)
    (tmp_path / "finder.py").write_text(DETECTOR_MODEL)
    (tmp_path / "example.png").write_bytes(picture())
    weights = io.BytesIO()
    torch.save({"scale": torch.tensor([2.0])}, weights)
    options = ("--handler", "detector.py", "--model-file", "finder.py")
    mar = archived(tmp_path, {"finder.pth": weights.getvalue()}, *options)
    await export(server, mar, tmp_path / "example.png")
    assert await asked(server, picture(), content_type="image/png") == [
        {"0": [0, 2, 4, 6], "score": pytest.approx(0.9)},
        {"2": [16, 18, 20, 22], "score": pytest.approx(0.4)},
    ]


@pytest.mark.soak  # tests/unit/torchlane/torchserve has functions, types and statuses
async def test_a_function_alone_chooses_types_and_statuses(
    server: Listening, tmp_path: Path
) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    (tmp_path / "example.json").write_text("[1, 2, 1]")
    mar = archived(tmp_path, {"sums.pt": scripted(Sums())}, "--handler", "alone.py")
    await export(server, mar, tmp_path / "example.json")
    body = request("/models/own/predict", b"[2, 1, 1]", content_type="application/json")
    answer = await server.ask(body)
    assert (answer.status, answer["content-type"], answer.body) == (200, "text/csv", b"2.0,1.0,1.0")
    wrong = await server.ask(request("/models/own/predict?wrong=1", b"[]"))
    assert (wrong.status, wrong.json()["message"]) == (422, "what is wrong?")


@pytest.mark.soak
async def test_one_that_overrides_preprocess_uses_the_served_model(
    server: Listening, tmp_path: Path
) -> None:
    (tmp_path / "prepares.py").write_text(PREPARES)
    (tmp_path / "example.json").write_text('{"numbers": [1, 2, 1]}')
    mar = archived(tmp_path, {"sums.pt": scripted(Sums())}, "--handler", "prepares.py")
    await export(server, mar, tmp_path / "example.json", "--model", "sums")
    body = b'{"numbers": [2, 1, 1]}'
    for path in ("/models/own/predict", "/predictions/own", "/predictions/own/1"):
        for method in ("POST", "PUT") if path.startswith("/pred") else ("POST",):
            answer = await server.ask(request(path, body, method=method))
            assert answer.json() == pytest.approx([2, 1, 1]), (path, method)
    wrong = await server.ask(request("/predictions/own", b"{}"))
    assert (wrong.status, wrong.json()["type"]) == (500, "InternalServerException")


def _files(folder: Path) -> list[Path]:
    return [*(folder / "repository" / "own").rglob("*")]


async def test_one_that_loads_the_archives_model_gets_the_served_one(
    server: Listening, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loads.py").write_text(LOADS)
    (tmp_path / "example.json").write_text('{"numbers": [1, 2, 1]}')
    files = {"sums.pt": scripted(Sums()), "common.py": COMMON.encode()}
    mar = archived(tmp_path, files, "--handler", "loads.py")
    await export(server, mar, tmp_path / "example.json", "--model", "sums")
    assert "; now with it" in capsys.readouterr().out
    assert await asked(server, b'{"numbers": [2, 1, 1]}') == pytest.approx([2, 1, 1])
    assert await server.metric("torchlane_items_total", model="sums") >= 2


async def test_options_that_do_not_fit_are_refused(
    server: Listening, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"http://127.0.0.1:{server.port}"
    (tmp_path / "prepares.py").write_text(PREPARES)
    example = tmp_path / "example.json"
    example.write_text('{"numbers": [1, 2, 1]}')
    archive = archived(tmp_path, {"sums.pt": scripted(Sums())}, "--handler", "prepares.py")
    plain = tmp_path / "plain.py"
    plain.write_text("import torchlane\nclass A(torchlane.Handler):\n  def predict(self, r): ...\n")
    for file, options, told in (
        (archive, ["--model", "nothing"], f"--server {address} has no model nothing"),
        (archive, ["--concurrency", "2"], "--processes runs several at once"),
        (archive, ["--entry", "a:B"], "--entry is not for TorchServe archives"),
        (plain, ["--model", "sums"], "--model is for TorchServe archives"),
    ):
        arguments = ["handler", str(file), "--example", str(example), "--server", address]
        arguments += ["--out", str(tmp_path / "out"), *options]
        assert await asyncio.to_thread(main, arguments, {}) == 2
        assert told in capsys.readouterr().err
