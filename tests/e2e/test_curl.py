"""Files without a type, as curl and httpx send them, to a real server."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from models.definitions.digits import PREPROCESS
from models.inputs.preprocess import preprocess
from tests.docs.blocks import ROOT
from tests.e2e.server import PLAIN, Server, running

THREE = ROOT / "docs/three.png"


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("curl") / "log"
    with running(repository, log, default_model="digits", access_log="off") as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same three as several kinds of file; curl guesses a type by the name, or none."""
    folder = tmp_path_factory.mktemp("pictures")
    array = preprocess(THREE.read_bytes(), PREPROCESS)
    picture = Image.open(THREE).convert("L")
    for name in ("three.png", "three", "three.bin"):
        (folder / name).write_bytes(THREE.read_bytes())
    picture.save(folder / "three.jpg", quality=95)
    picture.resize((1400, 1400)).save(folder / "large.jpg", quality=100, subsampling=0)
    np.save(folder / "three.npy", array)
    (folder / "three.raw").write_bytes(array.astype("<f4").tobytes())
    jpg = (folder / "three.jpg").read_bytes()
    zeroed = b"\xff\xe1\0\x40Exif" + bytes(58)  # what a program left that removes metadata
    (folder / "zeroed.jpg").write_bytes(jpg[:2] + zeroed + jpg[2:])
    lines = base64.encodebytes(THREE.read_bytes()).decode()
    (folder / "lines.json").write_text(json.dumps({"input": lines}), encoding="utf-8-sig")
    (folder / "three.json").write_text(json.dumps({"input": array.tolist()}))
    return folder


def curl(server: Server, folder: Path, options: str, path: str = "/predict") -> Any:
    command = ["curl", "-sS", *options.split(), f"{server.url}{path}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "options",
    [
        *(f"-F file=@{name}" for name in ("three.png", "three", "three.bin", "three.jpg")),
        *("-F file=@three.npy", "-F file=@three.raw", "-F x=@three.png;type=image/jpeg"),
        *("-F file=@three.png -H Transfer-Encoding:chunked", "-F file=@three.png --http1.0"),
        *("-F file=@large.jpg -H Expect:100-continue", "--data-binary @large.jpg"),
        *(f"--data-binary @{name}" for name in ("three.png", "three", "three.jpg", "three.npy")),
        *("--data-binary @three.png -H Content-Type:", "-d @three.json", "--json @three.json"),
        "--data-binary @three.png -H Content-Type:application/octet-stream",
        *("--data-binary @three.jpg -H Content-Type:image/JPG", "--data-binary @zeroed.jpg"),
        "--data-binary @lines.json -H Content-Type:application/json",
    ],
)
def test_a_three_is_recognised(server: Server, folder: Path, options: str) -> None:
    assert curl(server, folder, options)["prediction"]["label"] == "3"


def test_several_files_are_a_batch(server: Server, folder: Path) -> None:
    options = "-F a=@three.png -F a=@three.jpg -F b=@three.npy"
    answer = curl(server, folder, options, "/batch-predict")
    assert [each["label"] for each in answer["predictions"]] == ["3", "3", "3"]


def test_httpx(server: Server) -> None:
    for files in ({"file": THREE.read_bytes()}, {"file": ("x", THREE.read_bytes(), "image/png")}):
        answer = httpx.post(f"{server.url}/predict", files=files, verify=PLAIN)
        assert answer.json()["prediction"]["label"] == "3"
