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
from models.catalog import CATALOG
from tests.e2e.server import running

TRACE: Callable[..., Any] = torch.jit.trace  # untyped in torch


class Regions(nn.Module):
    """[n, 3, h, w] -> [n, 3]: how bright the left, the middle and the right third is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        thirds = torch.nn.functional.adaptive_avg_pool2d(x.mean(dim=1, keepdim=True), (1, 3))
        return thirds.flatten(1) * 4


def adopt(
    *arguments: str | Path,
) -> str:
    """What the command prints; of the forms only one, because each takes seconds."""
    out = io.StringIO()
    assert (
        main(
            ["adopt", *map(str, arguments), "--variants", "script", "--threads", "1"],
            CATALOG,
            Console(file=out, width=1000),
        )
        == 0
    )
    return out.getvalue()


class Words(nn.Module):
    """ids, mask [n, s] -> [n, 3]; a table of 50 words and 512 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(50, 16), nn.Embedding(512, 16)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        words: torch.Tensor = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        return (words * mask.unsqueeze(2)).sum(1)[:, :3]


@pytest.mark.soak
def test_learned_limits_turn_wrong_inputs_into_422(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(Words().eval()), str(tmp_path / "words.pt"))
    made = adopt(
        *(tmp_path / "words.pt", "--name", "words"),
        *("--input", "ids=int64[-1,-1]", "--input", "mask=bool[-1,-1]"),
        *("--out", tmp_path / "artifacts", "--max-batch-size", "2"),
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
    adopt(tmp_path / "regions.mar", "--max-batch-size", "1", "--out", tmp_path / "artifacts")

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
