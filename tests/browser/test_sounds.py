"""Sounds, on the page at /: files are chosen, removed and sent, one or several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import FilePayload, expect
from torch import nn

from models.codec_specs import AudioCodecSpec
from models.tensors import Dimension, TensorSpec
from tests.artifacts import write_artifact
from tests.browser.chromium import Visits
from tests.browser.test_try import predict
from tests.e2e.server import running
from tests.unit.models.sounds import tone, wav

pytest.importorskip("soundfile", reason="soundfile is not installed")
pytest.importorskip("soxr", reason="soxr is not installed")

N = Dimension(name="n", least=400, most=16_000)
AUDIO = TensorSpec(name="x", dtype="float32", shape=(-1, -1), dimensions=(N,))
LOUDEST = TensorSpec(name="y", dtype="float32", shape=(-1, 1))


class Loudest(nn.Module):
    """samples [n, t] -> the largest [n, 1]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x.amax(dim=1, keepdim=True)


def sound(name: str, share: float) -> FilePayload:
    return {"name": name, "mimeType": "audio/wav", "buffer": wav(share * 2 * tone(8_000), 8_000)}


def test_sounds_are_chosen_and_sent(visit: Visits, tmp_path: Path) -> None:
    write_artifact(
        tmp_path / "models",
        "loudest",
        module=Loudest(),
        inputs=(AUDIO,),
        outputs=(LOUDEST,),
        codec=AudioCodecSpec(rate=8_000),
        golden=[{"x": np.full(400, 0.5, np.float32)}],
    )
    with running(tmp_path / "models", tmp_path / "log", default_model="loudest") as server:
        page = visit(server.url)
        picker = page.get_by_label("WAV or FLAC files")
        picker.set_input_files([sound("quiet.wav", 0.25)])
        expect(page.get_by_role("listitem").filter(has_text="quiet.wav")).to_be_visible()
        expect(predict(page)).to_contain_text("0.25")
        picker.set_input_files([sound("loud.wav", 0.75)])
        answer = predict(page)
        expect(answer).to_contain_text("0.25")
        expect(answer).to_contain_text("0.75")
        same = page.get_by_role("region", name="The same call")
        expect(same).to_contain_text("loud.wav")
        page.get_by_role("button", name="Remove quiet.wav").click()
        answer = predict(page)
        expect(answer).to_contain_text("0.75")
        expect(answer).not_to_contain_text("0.25")
