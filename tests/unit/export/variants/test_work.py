"""What is told about a model: its multiplications, and what a runtime would gain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from export.variants import onnx, openvino
from export.variants.work import expected, multiplications

CONVOLUTION = nn.Conv2d(1, 2, 3)
PICTURE = torch.zeros(1, 1, 5, 5)


def exported(module: nn.Module) -> nn.Module:
    return torch.export.export(module, (PICTURE,)).module()


def scripted(module: nn.Module) -> nn.Module:
    script: Any = torch.jit.script  # untyped in torch
    made: nn.Module = script(module)
    return made


def test_multiplications_are_those_of_all_items() -> None:
    assert multiplications(CONVOLUTION, (PICTURE,)) == 9 * 2 * 9
    assert multiplications(nn.Linear(5, 7), (torch.zeros(3, 5),)) == 3 * 5 * 7


@pytest.mark.parametrize("made", [exported, scripted, nn.Sequential])
def test_a_gain_is_told_for_models_that_have_it(made: Any) -> None:
    assert expected(made(CONVOLUTION), openvino.GAINS).startswith("; convolutional networks")
    assert expected(made(CONVOLUTION), onnx.GAINS).startswith("; convolutional networks")
    assert expected(nn.LSTM(2, 2), onnx.GAINS).startswith("; an LSTM")


def test_nothing_is_told_of_other_models() -> None:
    assert expected(nn.Linear(2, 2), onnx.GAINS) == expected(nn.GRU(2, 2), openvino.GAINS) == ""
