"""Models that are ONNX files, and not modules of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from models.runtimes.base import VariantFile
from models.runtimes.onnx_models import load_onnx


class OnnxModule(nn.Module):
    """An ONNX model as it is in its file: ONNX Runtime runs it operator by operator.

    Args:
        data: the file.
        names: it returns its outputs under these names; empty: as a tuple.

    Attributes:
        session: ONNX Runtime's own object, which knows inputs and outputs.
    """

    def __init__(self, data: bytes, names: Sequence[str] = ()) -> None:
        super().__init__()
        self.data = data
        self.names = tuple(names)
        self._form = load_onnx(VariantFile.of(data), optimized=False)
        self.session: Any = self._form.model

    def forward(self, *tensors: torch.Tensor) -> object:
        """Run one forward.

        Raises:
            MemoryError, RuntimeError, ValueError: see `OnnxForm`.
        """
        outputs = self._form(*tensors)
        return dict(zip(self.names, outputs, strict=True)) if self.names else tuple(outputs)
