"""A model of uint8 pictures of any size, adopted and served: PNG, JPEG and WebP as they are."""

from __future__ import annotations

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
    arguments += ["--input", "pixels=uint8[-1,3,32<=h<=128,32<=w<=128]", "--threads", "1"]
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


def _output(prediction: dict[str, Any]) -> Any:
    return prediction["output"] if "output" in prediction else prediction["outputs"]["output"]
