"""A model traced in training mode is detected."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from export.errors import ExportError
from export.probing.traces import check_evaluating
from export.reading.model_files import load
from tests.unit.export.torchscripts import saved


def traced(module: nn.Module) -> nn.Module:
    """Traced as it is, written and read again."""
    trace: Callable[..., Any] = torch.jit.trace  # its own check would warn of what is random
    with warnings.catch_warnings():  # a batch norm looks at the size of the batch
        warnings.simplefilter("ignore")
        made = trace(module, torch.ones(2, 3, 4, 4), check_trace=False)
    return load(saved(made), "it.pt")


LAYERS = {
    "batch_norm": nn.BatchNorm2d(3),
    "dropout": nn.Dropout(0.5),
    "feature_dropout": nn.Dropout2d(0.5),
    "alpha_dropout": nn.AlphaDropout(0.5),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_trace_in_training_mode_is_refused(kind: str) -> None:
    module = nn.Sequential(nn.Sequential(LAYERS[kind], nn.ReLU()))
    with pytest.raises(ExportError) as excinfo:
        check_evaluating(traced(module.train()))
    message = str(excinfo.value)
    assert f"traced in training mode: its {kind} " in message
    assert "call model.eval() before torch.jit.trace" in message
    check_evaluating(traced(module.eval()))


def test_scripted_module_is_set_to_eval_on_load() -> None:
    module = nn.Sequential(*LAYERS.values()).train()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    check_evaluating(load(buffer.getvalue(), "it.pt"))
