"""Finds operations of a function that are fused, in TorchScript and in a compiled package."""

from __future__ import annotations

import contextlib
import io
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from models.timing import WARM_RUNS

# Wheels of torch since 2.1 are built without LLVM, which TorchScript's fuser needs on the CPU:
# https://github.com/pytorch/pytorch/issues/124383
HAS_LLVM = bool(torch._C._llvm_enabled())
# If an interpreter runs a fused group's operations one by one, it takes about a hundred times as
# long: https://github.com/pytorch/pytorch/issues/52264
WITHOUT_LLVM = (
    "This build of torch has no LLVM, so TorchScript fuses nothing on the CPU: each operation "
    "stays a separate call, and scripting saves only Python's part."
)


@dataclass(frozen=True, slots=True)
class Fused:
    """What TorchScript runs.

    Attributes:
        graph: as executed last, without comments on source files.
        groups: number of groups of fused operations.
    """

    graph: str
    groups: int


def executed(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Fused:
    """Return what this build executes for a function, once it is scripted and warm.

    Raises:
        RuntimeError: if TorchScript cannot compile the function.
    """
    return _executed(_fresh(function), inputs)


def fusible(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Fused:
    """Return what the fuser combines if it can generate code; else its interpreter runs it.

    Raises:
        RuntimeError: if TorchScript cannot compile the function.
    """
    with _fuser_on():
        return _executed(_fresh(function), inputs)


def kernels(package: Path) -> str:
    """Return the C++ loops of a compiled package (`.pt2`); empty if it has none.

    Raises:
        zipfile.BadZipFile: if it is not a package.
    """
    with zipfile.ZipFile(package) as archive:
        files = [name for name in sorted(archive.namelist()) if name.endswith(".kernel.cpp")]
        sources = [archive.read(name).decode() for name in files]
    # From the first function up to the build comments, which name this machine.
    loops = [
        re.search(r'extern "C".*?(?=\n// Compile cmd|\Z)', text, re.DOTALL) for text in sources
    ]
    return "\n\n".join(found.group().strip() for found in loops if found)


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """Script without memory of earlier runs: the fuser decides once per module."""
    saved = io.BytesIO()
    torch.jit.save(torch.jit.script(function), saved)
    load: Callable[..., Any] = torch.jit.load  # untyped in torch
    fresh: Callable[..., Any] = load(io.BytesIO(saved.getvalue()))
    return fresh


def _executed(scripted: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Fused:
    for _ in range(WARM_RUNS):
        scripted(*inputs)
    last = torch.jit.last_executed_optimized_graph()  # type: ignore[attr-defined]
    graph = re.sub(r" +#.*", "", str(last)).strip()
    return Fused(
        graph, len(set(re.findall(r"prim::(?:TensorExpr|Fusion|Cuda)\w*Group_\d+", graph)))
    )


@contextlib.contextmanager
def _fuser_on() -> Iterator[None]:
    """Enable fusion on the CPU, with or without LLVM, and keep groups visible; then restore."""
    native: Any = torch._C
    before = (
        native._jit_can_fuse_on_cpu(),
        native._jit_get_te_must_use_llvm_cpu(),
        native._debug_get_fusion_group_inlining(),
    )
    native._jit_override_can_fuse_on_cpu(True)
    native._jit_set_te_must_use_llvm_cpu(HAS_LLVM)
    native._debug_set_fusion_group_inlining(False)
    try:
        yield
    finally:
        native._jit_override_can_fuse_on_cpu(before[0])
        native._jit_set_te_must_use_llvm_cpu(before[1])
        native._debug_set_fusion_group_inlining(before[2])
