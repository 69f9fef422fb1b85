"""Models made elsewhere: adopted on the command line, served by a real process."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from export.cli import main
from export.variants.programs import quiet
from models.catalog import CATALOG
from tests.e2e.server import running

TRACE: Callable[..., Any] = torch.jit.trace  # untyped in torch


class Regions(nn.Module):
    """[n, 3, h, w] -> [n, 3]: how bright the left, the middle and the right third is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        thirds = torch.nn.functional.adaptive_avg_pool2d(x.mean(dim=1, keepdim=True), (1, 3))
        return thirds.flatten(1) * 4


def adopt(*arguments: str | Path, variants: str = "script") -> str:
    """What the command prints; of the forms only some, because each takes seconds."""
    out = io.StringIO()
    assert (
        main(
            ["adopt", *map(str, arguments), "--variants", variants],
            CATALOG,
            Console(file=out, width=1000),
        )
        == 0
    )
    return out.getvalue()


def test_a_traced_file_is_adopted_and_served(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
    TRACE(model, torch.zeros(1, 4)).save(str(tmp_path / "model.pt"))
    labels = tmp_path / "labels.txt"
    labels.write_text("low\nhigh\n")
    adopt(
        *(tmp_path / "model.pt", "--name", "theirs"),
        *("--input", "float32[-1,4]", "--labels", labels, "--scores", "softmax"),
        *("--out", tmp_path / "artifacts", "--max-batch-size", "8"),
    )
    inputs = np.random.default_rng(5).standard_normal((9, 4)).astype(np.float32)
    with torch.inference_mode():
        wanted = torch.softmax(model(torch.from_numpy(inputs)), dim=1).numpy()
    with running(tmp_path / "artifacts", tmp_path / "log") as server:
        answer = httpx.post(f"{server.url}/batch-predict", json={"inputs": inputs.tolist()})
    assert answer.status_code == 200, answer.text
    got = answer.json()["predictions"]
    np.testing.assert_allclose([each["scores"] for each in got], wanted, atol=1e-5)
    assert [each["label"] for each in got] == [("low", "high")[i] for i in wanted.argmax(axis=1)]


class Words(nn.Module):
    """ids, mask [n, s] -> [n, 3]; a table of 50 words and 512 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(50, 16), nn.Embedding(512, 16)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        words: torch.Tensor = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        return (words * mask.unsqueeze(2)).sum(1)[:, :3]


def test_learned_limits_turn_wrong_inputs_into_422(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(Words().eval()), str(tmp_path / "words.pt"))
    made = adopt(
        *(tmp_path / "words.pt", "--name", "words"),
        *("--input", "ids=int64[-1,-1]", "--input", "mask=bool[-1,-1]"),
        *("--out", tmp_path / "artifacts", "--max-batch-size", "4"),
    )
    options = "--input 'ids=int64[-1,n<=512] in 0..49' --input 'mask=bool[-1,n<=512]'"
    assert f"learned: that is {options}\n" in made
    assert "learned: 'n' is at most 512: 513 fails (index out of range in self)\n" in made
    right = {"ids": [1, 49], "mask": [1, 0]}
    wrong = [{**right, "ids": [1, 300]}, {**right, "mask": [1]}]
    wrong.append({"ids": [1] * 600, "mask": [1] * 600})
    with running(tmp_path / "artifacts", tmp_path / "log") as server:
        url = f"{server.url}/models/words/predict"
        assert httpx.post(url, json={"input": right}).status_code == 200
        answers = [httpx.post(url, json={"input": each}) for each in wrong]
    assert [each.status_code for each in answers] == [422, 422, 422]
    numbers = [
        (each.json()["details"][0]["got"], each.json()["details"][0]["limit"]) for each in answers
    ]
    assert numbers == [(300, 49), (1, 2), (600, 512)]
    assert "model_failed" not in (tmp_path / "log").read_text()


class Halves(nn.Module):
    """[n, 3, 16, 16] -> [n, 2]: how bright the left and the right half is, with a little noise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        seen = x + 0.1 * self.second(torch.relu(self.first(x)))
        columns = seen.mean((1, 2))
        return 4 * torch.stack([columns[:, :8].mean(1), columns[:, 8:].mean(1)], dim=1)


def half_lit(folder: Path, count: int) -> Path:
    """Write pictures into the folders of their labels, left and right."""
    rng = np.random.default_rng(1)
    for label, lit in (("left", slice(0, 8)), ("right", slice(8, 16))):
        (folder / label).mkdir(parents=True)
        for index in range(count):
            levels = rng.integers(0, 120, (16, 16, 3))
            levels[:, lit] += 100
            Image.fromarray(levels.astype(np.uint8)).save(folder / label / f"{index}.png")
    return folder


def test_int8_of_real_pictures_is_served_only_on_request(tmp_path: Path) -> None:
    for package in ("onnxscript", "openvino"):
        pytest.importorskip(package, reason="needs torchlane[onnx-export,openvino]")
    torch.manual_seed(2)
    model, pictures = Halves().eval(), half_lit(tmp_path / "pictures", 12)
    free = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (torch.zeros(3, 3, 16, 16),), dynamic_shapes=free)
    torch.export.save(program, tmp_path / "model.pt2")
    (tmp_path / "labels.txt").write_text("left\nright\n")
    made = adopt(
        *(tmp_path / "model.pt2", "--name", "halves", "--codec", "image"),
        *("--labels", tmp_path / "labels.txt", "--scores", "softmax", "--examples", pictures),
        *("--out", tmp_path / "artifacts", "--max-batch-size", "4"),
        variants="script,int8",
    )
    told = "24 of 24 items of pictures; accuracy is measured on 12, int8 may use 12 others"
    assert f"examples: {told}\n" in made
    artifact = tmp_path / "artifacts/halves/1"
    manifest = json.loads((artifact / "manifest.json").read_text())
    assert (manifest["accuracy"], manifest["variants"]["int8"]["accuracy"]) == (1, 1)
    assert "12 items" in manifest["variants"]["int8"]["made_by"]
    report = (artifact / "report.html").read_text()
    assert "held-out accuracy" in report
    assert told in report
    served = {}
    for precision in (None, "int8"):
        asked = {} if precision is None else {"plan_precision": precision}
        log = tmp_path / f"log-{precision}"
        with running(tmp_path / "artifacts", log, **asked) as server:
            picture = (pictures / "right/3.png").read_bytes()
            headers = {"content-type": "image/png"}
            answer = httpx.post(f"{server.url}/predict", content=picture, headers=headers)
            assert answer.json()["prediction"]["label"] == "right", answer.text
            told = httpx.get(f"{server.url}/models/halves?full=true").json()
            served[told["precision"]] = answer.json()["prediction"]["scores"]
    assert set(served) == {"float32", "int8"}
    assert served["float32"] != served["int8"]
    np.testing.assert_allclose(served["float32"], served["int8"], atol=0.05)


def test_an_onnx_file_is_adopted_and_served_without_torchscript(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs pip install 'torchlane[onnx-export]'")
    torch.manual_seed(3)
    network, batch = Words().eval(), torch.export.Dim("batch")
    ids = torch.tensor([[1, 2, 3], [4, 5, 49]])
    free = {0: batch, 1: torch.export.Dim("length", max=512)}
    with quiet():
        program = torch.onnx.export(
            *(network, (ids, ids > 2)),
            dynamic_shapes=(free, free),
            input_names=["ids", "mask"],
            output_names=["scores"],
            verbose=False,
        )
    assert program is not None
    program.save(tmp_path / "words.onnx", external_data=False)
    made = adopt(
        *(tmp_path / "words.onnx", "--name", "words", "--max-batch-size", "4"),
        *("--out", tmp_path / "artifacts"),
        variants="script,onnx",
    )
    assert made.count("left out: the model is an ONNX file, which torch cannot read\n") == 1
    assert "serves    float32 on cpu: 1..4 onnx\n" in made
    with torch.inference_mode():
        wanted = network(ids, ids > 2).tolist()
    inputs = [{"ids": each, "mask": [n > 2 for n in each]} for each in ids.tolist()]
    with running(tmp_path / "artifacts", tmp_path / "log") as server:
        url = f"{server.url}/models/words"
        answer = httpx.post(f"{url}/batch-predict", json={"inputs": inputs})
        wrong = httpx.post(f"{url}/predict", json={"input": {"ids": [50], "mask": [True]}})
        about = httpx.get(f"{server.url}/v2/models/words").json()
    assert answer.status_code == 200, answer.text
    got = [each["outputs"]["scores"] for each in answer.json()["predictions"]]
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    assert wrong.status_code == 422
    assert about["platform"] == "onnx_onnxv1"


def test_a_torchserve_archive_is_adopted_and_served(tmp_path: Path) -> None:
    """What TorchServe's image_classifier does: shorter side to 256, middle 224, normalised."""
    TRACE(Regions().eval(), torch.zeros(1, 3, 224, 224)).save(str(tmp_path / "regions.pt"))
    names = {"0": ["n1", "left"], "1": ["n2", "middle"], "2": ["n3", "right"]}
    (tmp_path / "index_to_name.json").write_text(json.dumps(names))
    archiver = "from model_archiver.model_packaging import *; generate_model_archive()"
    subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-c", archiver),
            *("--model-name", "regions", "--version", "1.0", "--handler", "image_classifier"),
            *("--serialized-file", tmp_path / "regions.pt", "--export-path", tmp_path),
            *("--extra-files", tmp_path / "index_to_name.json"),
        ],
        check=True,
    )
    adopt(tmp_path / "regions.mar", "--max-batch-size", "8", "--out", tmp_path / "artifacts")

    rng = np.random.default_rng(1)
    picture = Image.fromarray(rng.integers(0, 256, (300, 500, 3), dtype=np.uint8))
    scaled = picture.resize((int(256 * 500 / 300), 256), Image.Resampling.BILINEAR)
    left, top = round((scaled.width - 224) / 2), round((scaled.height - 224) / 2)
    middle = np.asarray(scaled.crop((left, top, left + 224, top + 224)), np.float32) / 255
    mean = np.array([0.485, 0.456, 0.406], np.float32)
    std = np.array([0.229, 0.224, 0.225], np.float32)
    array = ((middle - mean) / std).transpose(2, 0, 1)[None]
    with torch.inference_mode():
        logits = Regions()(torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)))
        wanted = torch.softmax(logits, dim=1)[0].numpy()
    png = io.BytesIO()
    picture.save(png, "PNG")
    with running(tmp_path / "artifacts", tmp_path / "log") as server:
        answer = httpx.post(
            f"{server.url}/models/regions/predict",
            content=png.getvalue(),
            headers={"Content-Type": "image/png"},
        )
    assert answer.status_code == 200, answer.text
    got = answer.json()["prediction"]
    np.testing.assert_allclose(got["scores"], wanted, atol=1e-4)
    assert got["label"] == ("left", "middle", "right")[int(wanted.argmax())]
