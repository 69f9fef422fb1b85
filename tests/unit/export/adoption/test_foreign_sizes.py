"""The sizes of free dimensions tried on a model, and the resulting outputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from export.adoption.foreign import infer
from export.probing.samples import Samples
from export.reading.model_files import load
from models.codec_specs import TensorCodecSpec
from models.tensors import Dimension
from tests.unit.export.torchscripts import Sums, scripted
from tests.unit.models.manifests import spec

TENSOR = TensorCodecSpec()


@pytest.fixture(autouse=True)
def _no_forward_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent of the load on this machine."""
    for limit in ("MAX_LARGEST_S", "LARGER_BUDGET_S"):
        monkeypatch.setattr(f"export.adoption.foreign.{limit}", 1e9)


def sizes(samples: Samples) -> list[int]:
    """Of the first free axis."""
    (spec,) = samples.inputs
    at = spec.item_shape.index(-1)
    return [shapes[0][at] for shapes in samples.shapes]


class Halving(nn.Module):
    """Halves a picture five times, so its size must be a larger multiple of 32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[2] % 32 != 0:
            raise ValueError("no multiple of 32")
        return nn.functional.avg_pool2d(x, 32)


class Windowed(nn.Module):
    """A picture network with a stride of eight, which rejects long pictures."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest
        self.layer = nn.Conv2d(3, 8, 3, stride=8, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[2] > self.longest:
            raise ValueError("too long")
        output: torch.Tensor = self.layer(x)
        return output


class AfterTen(nn.Module):
    """The mean of all rows but the first ten, which is NaN where there are no others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 10:].mean(dim=1)


def test_output_axes_that_never_vary_are_fixed() -> None:
    specs, samples = infer(load(scripted(Sums()), "it.pt"), (spec("x", shape=(-1, -1, 3)),), TENSOR)
    assert [each.shape for each in specs] == [(-1, -1, 2)]
    assert sizes(samples) == [3, 5, 64]  # as usual requests have


def test_larger_sizes_are_tried_after_small_ones_fail() -> None:
    inputs = (spec("x", shape=(-1, 3, -1, -1)),)
    specs, samples = infer(load(scripted(Halving()), "it.pt"), inputs, TENSOR)
    assert sizes(samples) == [64, 96]
    assert [each.shape for each in specs] == [(-1, 3, -1, -1)]


@pytest.mark.parametrize("longest", [1000, 30])
def test_axes_that_vary_at_larger_sizes_are_free(longest: int) -> None:
    """Of 3 and of 5 pixels a stride of 8 leaves one; of 16 and 24 it does not."""
    inputs = (spec("x", shape=(-1, 3, -1, -1)),)
    specs, samples = infer(load(scripted(Windowed(longest)), "it.pt"), inputs, TENSOR)
    assert [each.shape for each in specs] == [(-1, 8, -1, -1)]
    assert sizes(samples) == [3, 5, 64 if longest > 64 else 16]


def test_larger_sizes_are_skipped_if_huge() -> None:
    inputs = (spec("x", shape=(-1, -1, -1, -1, -1)),)  # at 64 a batch has 200 MB
    specs, samples = infer(load(scripted(nn.ReLU()), "it.pt"), inputs, TENSOR)
    assert [each.shape for each in specs] == [(-1, -1, -1, -1, -1)]
    assert sizes(samples) == [3, 5, 16]


def test_sizes_that_give_nan_are_skipped() -> None:
    module = load(scripted(AfterTen()), "it.pt")
    specs, samples = infer(module, (spec("x", shape=(-1, -1, 2)),), TENSOR)
    assert [each.shape for each in specs] == [(-1, 2)]
    assert sizes(samples) == [16, 24, 64]


def test_random_inputs_use_sizes_that_worked() -> None:
    module = load(scripted(Halving()), "it.pt")
    _, samples = infer(module, (spec("x", shape=(-1, 3, -1, -1)),), TENSOR)
    for item in samples.golden_inputs():
        assert module(torch.from_numpy(item["x"][None])).shape[:2] == (1, 3)


class Frames(nn.Module):
    """The mean of each window of 512 samples of a sound."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.unfold(1, 512, 512).mean(2)


@pytest.mark.parametrize(
    ("least", "most", "seen"),
    [
        (512, 16384, [512, 1024, 4096, 16384]),
        (0, 1024, [512, 768]),
        (512, 1024, [512, 1024]),
        (600, 1100, [600, 1100]),
    ],
)
def test_outputs_are_free_that_vary_only_at_large_sizes(
    least: int, most: int, seen: list[int]
) -> None:
    free = Dimension(least=least, most=most)
    inputs = (spec("x", shape=(-1, -1)).model_copy(update={"dimensions": (free,)}),)
    specs, samples = infer(load(scripted(Frames()), "it.pt"), inputs, TENSOR)
    assert [each.shape for each in specs] == [(-1, -1)]
    assert sizes(samples) == seen
