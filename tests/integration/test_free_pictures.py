"""A model of uint8 pictures of any size, adopted and served: PNG, JPEG and WebP as they are."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from export import cli
from tests.integration.harness import serving
from tests.unit.export.torchscripts import saved
from tests.unit.models.pictures import encoded, noise, webp


class Channels(nn.Module):
    """pixels [n, 3, h, w], uint8 -> the mean level of each channel [n, 3]."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return pixels.float().mean(dim=(2, 3))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("free")
    (folder / "model.pt").write_bytes(saved(torch.jit.script(Channels())))
    arguments = ["adopt", str(folder / "model.pt"), "--name", "channels", "--codec", "image"]
    arguments += [
        "--input",
        "pixels=uint8[-1,3,32<=h<=128,32<=w<=128]",
        "--threads",
        "1",
        "--variants",
        "script",
    ]
    assert cli.main([*arguments, "--out", str(folder / "models")], {}) == 0
    return folder / "models"


async def test_pictures_of_several_sizes_share_a_request(repository: Path) -> None:
    pictures = [Image.fromarray(noise(height, width)) for height, width in ((32, 90), (128, 40))]
    files = [encoded(pictures[0]), webp(pictures[1], lossless=True), encoded(pictures[1])]
    wanted = [np.asarray(pictures[at]).mean(axis=(0, 1)) for at in (0, 1, 1)]
    async with serving(repository, default_model="channels") as api:
        sent = [("file", (str(at), data)) for at, data in enumerate(files)]
        reply = await api.client.post("/batch-predict", files=sent)
        got = [_output(each) for each in reply.json()["predictions"]]
        np.testing.assert_allclose(got, wanted, atol=1e-3)
        reply = await api.client.post("/predict", files={"file": ("a", files[1])})
        np.testing.assert_allclose(_output(reply.json()["prediction"]), wanted[1], atol=1e-3)
        small = encoded(Image.fromarray(noise(31, 90)))
        reply = await api.client.post("/predict", files={"file": ("a", small)})
        assert reply.status_code == 422
        assert "90 x 31 pixels, the model takes a height of 32 to 128" in reply.text
        model = (await api.client.get("/models/channels?full=true")).json()
        example = {"input": model["example"]}
        assert (await api.client.post("/predict", json=example)).status_code == 200


class Prompted(nn.Module):
    """A prompt [n, 3] and pixels [n, 3, 8, 8] -> the mean of each channel, weighted [n, 3]."""

    def forward(self, prompt: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return prompt * pixels.mean(dim=(2, 3))


async def test_a_picture_and_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(saved(torch.jit.script(Prompted())))
    arguments = ["adopt", str(tmp_path / "model.pt"), "--name", "prompted", "--codec", "image"]
    arguments += ["--input", "prompt=float32[-1,3]", "--input", "pixels=float32[-1,3,8,8]"]
    arguments += ["--threads", "1", "--variants", "script", "--out", str(tmp_path / "models")]
    assert cli.main(arguments, {}) == 0
    picture = Image.fromarray(noise(8, 8))
    wanted = np.asarray(picture).mean(axis=(0, 1)) / 255 * [1, 2, 0]
    text = base64.b64encode(encoded(picture)).decode()
    item = {"pixels": text, "prompt": [1, 2, 0]}
    async with serving(tmp_path / "models", default_model="prompted") as api:
        form = {"file": ("a.png", encoded(picture)), "prompt": (None, "[1, 2, 0]")}
        for sent in ({"json": {"input": item}}, {"files": form}):
            reply = await api.client.post("/predict", **sent)
            assert reply.status_code == 200, reply.text
            np.testing.assert_allclose(_output(reply.json()["prediction"]), wanted, atol=1e-5)
        reply = await api.client.post("/batch-predict", json={"inputs": [item] * 2})
        for each in reply.json()["predictions"]:
            np.testing.assert_allclose(_output(each), wanted, atol=1e-5)
        reply = await api.client.post("/predict", files={"file": ("a.png", encoded(picture))})
        assert reply.status_code == 422
        assert "must have the parts pixels, prompt" in reply.text
        document = (await api.client.get("/openapi.json")).json()
        bodies = [
            document["paths"][path]["post"]["requestBody"]["content"]
            for path in ("/predict", "/batch-predict")
        ]
        form_of_one = bodies[0]["multipart/form-data"]["schema"]
        assert form_of_one["required"] == ["pixels", "prompt"]
        assert "multipart/form-data" not in bodies[1]
        config = (await api.client.get("/v2/models/prompted/config")).json()
        assert [each["format"] for each in config["input"]] == ["FORMAT_NONE", "FORMAT_NCHW"]
        model = (await api.client.get("/models/prompted?full=true")).json()
        assert set(model["example"]) == {"pixels", "prompt"}
        reply = await api.client.post("/predict", json={"input": model["example"]})
        assert reply.status_code == 200


def _output(prediction: dict[str, Any]) -> Any:
    return prediction["output"] if "output" in prediction else prediction["outputs"]["output"]
