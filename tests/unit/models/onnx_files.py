"""ONNX files as others make them; tests that need them are skipped without the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import pytest

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'torchlane[onnx-export]'")
helper: Any = onnx.helper
ModelProto: TypeAlias = Any
FLOAT, INT64 = 1, 7


def tensor(name: str, numbers: Sequence[float]) -> Any:
    """A float32 tensor [numbers]."""
    made: Any = helper.make_tensor(name, FLOAT, [len(numbers)], numbers)
    return made


def model(
    *nodes: Any,
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    functions: Sequence[Any] = (),
    rank: int = 2,
) -> ModelProto:
    """A model with the weights w [2]; by default of x [batch, 2] -> y [...]."""
    taken = inputs or [helper.make_tensor_value_info("x", FLOAT, ["batch", 2])]
    made = outputs or [helper.make_tensor_value_info("y", FLOAT, [None] * rank)]
    graph = helper.make_graph(nodes, "graph", taken, made, [tensor("w", [1.0, 2.0])])
    domains = {each.domain for each in functions}
    return helper.make_model(
        graph,
        functions=list(functions),
        opset_imports=[helper.make_opsetid("", 20), *(helper.make_opsetid(d, 1) for d in domains)],
        ir_version=10,
    )
