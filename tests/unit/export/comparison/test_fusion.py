"""Which operations run as one."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch

from export.comparison.compare_cases import cases
from export.comparison.fusion import HAS_LLVM, executed, fusible, kernels

PAIRWISE, CHAIN = cases(rows=3, columns=4, length=5)


def test_the_executed_graph_has_every_operation() -> None:
    found = executed(CHAIN.batched, CHAIN.inputs)
    assert found.graph.count("aten::mul") == 10
    assert ".py:" not in found.graph
    assert (found.groups > 0) == HAS_LLVM


def test_the_fuser_takes_the_chain_as_one_group() -> None:
    found = fusible(CHAIN.batched, CHAIN.inputs)
    assert found.groups == 1
    assert "with prim::TensorExprGroup_0 = graph" in found.graph
    assert found.graph.partition("with prim::")[2].count("aten::mul") == 10


def test_sum_ends_a_fusion_group() -> None:
    found = fusible(PAIRWISE.batched, PAIRWISE.inputs)
    assert found.groups == 1
    assert "aten::sum" in found.graph.partition("with prim::")[0]


def test_inspection_does_not_change_the_fuser() -> None:
    before = executed(CHAIN.batched, CHAIN.inputs)
    fusible(CHAIN.batched, CHAIN.inputs)
    assert executed(CHAIN.batched, CHAIN.inputs).groups == before.groups


def test_fused_code_gives_the_right_answer() -> None:
    expected = CHAIN.loop(*CHAIN.inputs)
    fusible(CHAIN.batched, CHAIN.inputs)
    scripted = torch.jit.script(CHAIN.batched)
    assert torch.allclose(scripted(*CHAIN.inputs), expected)


def test_package_without_kernels_shows_nothing(tmp_path: Path) -> None:
    file = tmp_path / "empty.pt2"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("version", "1")
    assert kernels(file) == ""
