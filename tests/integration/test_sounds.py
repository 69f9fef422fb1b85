"""A model of sounds, adopted with --codec audio and served: WAV and FLAC in every protocol."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim, export, save

from app.bulk import command
from export import cli
from models.codec_specs import AudioCodecSpec
from models.inputs.audio import decode_sound, open_sound
from models.integrity import read_artifact
from models.tensors import Array
from tests.integration.harness import Api, serving, settled
from tests.unit.models.sounds import flac, tone, wav

pytest.importorskip("soundfile", reason="soundfile is not installed")
pytest.importorskip("soxr", reason="soxr is not installed")

RATE = 16_000
# A tone of one channel, one of two channels at another rate, and a short one.
SOUNDS = (
    wav(tone(RATE)),
    flac(np.stack([tone(44_100, hertz=880), tone(44_100)], 1), 44_100),
    wav(tone(RATE, 0.05)),
)


class Features(nn.Module):
    """samples [n, t] of at least 400 -> features [n, frames, 4], 25 ms every 20 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Conv1d(1, 4, 400, 320)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """See the class."""
        made: torch.Tensor = self.frames(audio.unsqueeze(1))
        return made.relu().transpose(1, 2)


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return Features().eval()


@pytest.fixture(scope="module")
def repository(module: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adopted with sounds as examples, which its golden ones then are."""
    folder = tmp_path_factory.mktemp("sounds")
    (folder / "examples").mkdir()
    for number, data in enumerate(SOUNDS):
        suffix = "flac" if data.startswith(b"fLaC") else "wav"
        (folder / "examples" / f"{number}.{suffix}").write_bytes(data)
    given = (torch.rand(2, 1_000),)
    save(export(module, given, dynamic_shapes=[{0: Dim.DYNAMIC, 1: Dim.DYNAMIC}]), folder / "m.pt2")
    arguments = ["adopt", str(folder / "m.pt2"), "--name", "features", "--codec", "audio"]
    arguments += ["--rate", str(RATE), "--input", "audio=float32[-1,400<=n<=16000]"]
    arguments += ["--examples", str(folder / "examples"), "--variants", "script"]
    arguments += ["--threads", "1", "--out", str(folder / "models")]
    assert cli.main(arguments, {}) == 0
    return folder


def answer_of(module: nn.Module, data: bytes, repository: Path) -> Array:
    manifest = read_artifact(repository / "models/features/1", repository / "models")[0]
    assert isinstance(manifest.codec, AudioCodecSpec)
    samples = decode_sound(
        open_sound(data, manifest.codec, manifest.inputs[0].axes[-1]), manifest.codec
    )
    with torch.inference_mode():
        return np.asarray(module(torch.from_numpy(samples)[None])[0])


def test_the_manifest(repository: Path) -> None:
    manifest = read_artifact(repository / "models/features/1", repository / "models")[0]
    assert manifest.codec == AudioCodecSpec(rate=RATE, resampling="soxr-hq")
    sizes = sorted(example.inputs["audio"].shape[0] for example in manifest.golden)
    assert sizes == [800, 1600, 1600]
    assert isinstance(manifest.example, str)
    assert base64.b64decode(manifest.example).startswith(b"RIFF")


async def test_sounds_are_answered(module: nn.Module, repository: Path) -> None:
    wanted = [answer_of(module, data, repository) for data in SOUNDS]
    async with serving(repository / "models", default_model="features") as api:
        for data, each in zip(SOUNDS, wanted, strict=True):
            for sent in (
                {"json": {"input": base64.b64encode(data).decode()}},
                {"files": {"file": ("a.wav", data)}},
                {"content": data, "headers": {"Content-Type": "audio/x-wav"}},
                {"content": data, "headers": {"Content-Type": "application/octet-stream"}},
            ):
                reply = await api.client.post("/predict", **sent)
                np.testing.assert_allclose(_output(reply.json()["prediction"]), each, atol=1e-5)
        files = [("file", (str(number), data)) for number, data in enumerate(SOUNDS)]
        reply = await api.client.post("/batch-predict", files=files)
        for got, each in zip(reply.json()["predictions"], wanted, strict=True):
            np.testing.assert_allclose(_output(got), each, atol=1e-5)
        same = [base64.b64encode(data).decode() for data in SOUNDS[:2]]
        given = {"name": "audio", "datatype": "BYTES", "shape": [2], "data": same}
        reply = await api.client.post("/v2/models/features/infer", json={"inputs": [given]})
        (made,) = reply.json()["outputs"]
        np.testing.assert_allclose(made["data"], np.ravel(wanted[:2]), atol=1e-5)
        await _refusals(api)


async def _refusals(api: Api) -> None:
    for data, kind, status, told in (
        (b"\xff\xfb" * 9, "audio/mpeg", 415, "audio/wav, audio/flac"),
        (SOUNDS[0][:-9], "audio/wav", 422, "is cut off"),
        (wav(tone(RATE, 0.02)), "audio/wav", 422, "takes 400 to 16000 (0.025 to 1.000 s)"),
        (wav(tone(RATE, 2)), "audio/wav", 422, "32000 samples"),
    ):
        reply = await api.client.post("/predict", content=data, headers={"Content-Type": kind})
        assert (reply.status_code, told in reply.text) == (status, True), reply.text
    document = (await api.client.get("/openapi.json")).json()
    assert "audio/flac" in json.dumps(document["paths"]["/predict"])
    assert "a WAV or FLAC file in base64" in json.dumps(document)
    model = (await api.client.get("/models/features")).json()
    assert model["codec"] == "audio"


async def test_without_the_extra_the_model_says_so(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    async with serving(repository / "models", wait_ready=False, default_model="features") as api:
        await settled(api)
        (model,) = (await api.client.get("/models")).json()["models"]
        assert model["state"] != "ready"
        assert "pip install 'torchlane[audio]'" in model["versions"][0]["problem"]


def test_a_folder_of_sounds_is_scored(
    module: nn.Module, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.logs.configure_logs", lambda level, form: None)
    options = ["--model-dir", str(repository / "models"), "--devices", "cpu", "--workers", "0"]
    options += ["--out", str(tmp_path / "out"), "--format", "jsonl"]
    assert command.main(["features", str(repository / "examples"), *options]) == 0
    (part,) = (tmp_path / "out").glob("part-*.jsonl")
    rows = [json.loads(line) for line in part.read_text().splitlines()]
    assert [row["id"] for row in rows] == ["0.wav", "1.flac", "2.wav"]
    for row, data in zip(rows, SOUNDS, strict=True):
        np.testing.assert_allclose(_output(row), answer_of(module, data, repository), atol=1e-5)


def _output(prediction: Any) -> Array:
    """The only output of a prediction, or of a row."""
    named = prediction.get("outputs") or {"": prediction.get("output")}
    return np.array(next(iter(named.values())))
