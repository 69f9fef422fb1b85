"""`adopt --codec audio`: what the options say, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from export.errors import UsageError
from models.codec_specs import AudioCodecSpec
from tests.unit.export.torchscripts import run, scripted, written


class Loudness(nn.Module):
    """samples [n, t] of at least one -> [n, 1]."""

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return audio.abs().mean(1, keepdim=True)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("sounds"), scripted(Loudness()))


def adopted(file: Path, *options: str) -> object:
    return run(file, "--name", "loudness", *options)


def test_the_codec_and_a_longest_sound(file: Path) -> None:
    options = ("--codec", "audio", "--rate", "8000", "--resampling", "none")
    result = run(file, "--name", "loudness", "--input", "audio=float32[-1,400<=n]", *options)
    assert result.definition.codec == AudioCodecSpec(rate=8000, resampling="none")
    (spec,) = result.definition.inputs
    assert str(spec) == "audio=float32[-1,400<=n<=240000]"
    (message,) = result.warnings
    assert message.startswith("sounds may have up to 240000 samples (30 s)")


def test_a_longest_sound_that_is_given(file: Path) -> None:
    options = ("--codec", "audio", "--rate", "8000", "--input", "float32[-1,1<=n<=900]")
    result = run(file, "--name", "loudness", *options)
    assert not result.warnings
    assert result.definition.inputs[0].axes[0].most == 900
    assert isinstance(result.definition.example(), str)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--codec", "audio"], "needs --rate, the samples per second of the input, 1000 to"),
        (["--codec", "audio", "--rate", "16"], "got 16"),
        (["--codec", "audio", "--rate", "0", "--input", "float32[-1,n]"], "got 0"),
        (["--codec", "audio", "--rate", "100000000", "--input", "float32[-1,n]"], "got 1000"),
        (["--rate", "16000"], "--rate is for sounds: add --codec audio"),
        (["--codec", "audio", "--rate", "8000", "--fit", "pad"], "--fit is for pictures, not for"),
        (["--codec", "audio", "--rate", "8000", "--input", "int16[-1,9]"], "sounds need one input"),
    ],
)
def test_refused(file: Path, options: list[str], why: str) -> None:
    inputs = options if "--input" in options else ["--input", "float32[-1,n<=900]", *options]
    with pytest.raises(UsageError, match=why):
        adopted(file, *inputs)
