"""What is told about a model: its multiplications, and what a runtime would gain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from export.variants import onnx, openvino
from export.variants.work import ForwardWork, expected_gain, work_of

CONVOLUTION = nn.Conv2d(1, 2, 3)
PICTURE = torch.zeros(1, 1, 5, 5)


def exported(module: nn.Module) -> nn.Module:
    return torch.export.export(module, (PICTURE,)).module()


def scripted(module: nn.Module) -> nn.Module:
    script: Any = torch.jit.script  # untyped in torch
    made: nn.Module = script(module)
    return made


class Both(nn.Module):
    """A convolution of 162 multiplications, then a linear layer of 18 inputs, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.wide, self.narrow = CONVOLUTION, nn.Linear(18, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.narrow(self.wide(self.conv(x).flatten(1)))
        return output


def test_multiplications_are_those_of_all_items() -> None:
    both = 2 * 162 + 2 * 18 * 5 + 2 * 5 * 3
    work = work_of(Both(), (torch.cat([PICTURE, PICTURE]),), least_weights=90)
    assert work == ForwardWork(total=both, linear=2 * 18 * 5, convolutions=2 * 162)
    assert work.share(work.linear) == pytest.approx(180 / both)


def test_functions_count_like_layers() -> None:
    class Functional(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.conv2d(x, CONVOLUTION.weight)

    assert work_of(Functional(), (PICTURE,), 1) == ForwardWork(
        total=162, linear=0, convolutions=162
    )
    assert work_of(nn.ReLU(), (PICTURE,), 1).share(0) == 0


@pytest.mark.parametrize("value", [exported, scripted, nn.Sequential])
def test_a_gain_is_told_for_models_that_have_it(value: Any) -> None:
    assert expected_gain(value(CONVOLUTION), openvino.GAINS).startswith("; convolutional networks")
    assert expected_gain(value(CONVOLUTION), onnx.GAINS).startswith("; convolutional networks")
    assert expected_gain(nn.LSTM(2, 2), onnx.GAINS).startswith("; an LSTM")


def test_nothing_is_told_of_other_models() -> None:
    assert (
        expected_gain(nn.Linear(2, 2), onnx.GAINS)
        == expected_gain(nn.GRU(2, 2), openvino.GAINS)
        == ""
    )
