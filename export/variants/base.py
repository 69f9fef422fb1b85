"""The interface of variant makers, and their input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from export.options.artifacts import INTEGER_SHARE
from models.choices import Precision
from models.definitions.definition import Definition
from models.manifest import Format, NativeCode
from models.processor import DeviceKind
from models.tensors import TensorSpec, Tolerance

# How far a variant may be from eager float32. Stored in the manifest, because the server replays
# the golden examples against them.
TOLERANCES: dict[Precision, Tolerance] = {
    # Only the order of additions differs between kernels.
    "float32": Tolerance(absolute=1e-5, relative=1e-4, of_range=1e-5, integer_share=INTEGER_SHARE),
    # 11 bits of mantissa, 8 bits, and 256 levels: errors are shares of the largest values summed.
    # The index of two nearly equal scores may change; accuracy shows the cost.
    "fp16": Tolerance(absolute=1e-3, relative=0, of_range=0.01, exact_integers=False),
    "bf16": Tolerance(absolute=0.01, relative=0, of_range=0.05, exact_integers=False),
    "int8": Tolerance(absolute=0.05, relative=0, of_range=0.25, exact_integers=False),
}


# The coarser one first.
HALVES: dict[torch.dtype, Precision] = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def own_precision(module: nn.Module, outputs: Sequence[TensorSpec]) -> Precision:
    """Return the precision in which a model itself computes: that of its weights and outputs."""
    dtypes = {each.dtype for each in weights_of(module)}
    dtypes |= {getattr(torch, spec.dtype) for spec in outputs}
    return next((precision for dtype, precision in HALVES.items() if dtype in dtypes), "float32")


def weights_of(module: nn.Module) -> list[torch.Tensor]:
    """Return parameters, buffers, and the constants of TorchScript, whose weights may be frozen."""
    tensors = [*module.parameters(), *module.buffers()]
    if isinstance(module, torch.jit.ScriptModule):
        graph: Any = module.inlined_graph
        constants = (each.output().toIValue() for each in graph.findAllNodes("prim::Constant"))
        tensors += [each for each in constants if isinstance(each, torch.Tensor)]
    return tensors


def tolerance_of(precision: Precision, own: Precision, integer_share: float) -> Tolerance:
    """Return how far a variant's answers may be from the model's own.

    Args:
        precision: of the variant.
        own: of the model: two kernels differ by as much as it rounds.
        integer_share: see `Tolerance`.
    """
    if precision != "float32":
        return max(TOLERANCES[precision], TOLERANCES[own], key=lambda each: each.of_range)
    return TOLERANCES[own].model_copy(
        update={"exact_integers": True, "integer_share": integer_share}
    )


def scaled(tolerance: Tolerance, factor: float) -> Tolerance:
    """Return a tolerance with a multiple of its absolute part."""
    return tolerance.model_copy(update={"absolute": factor * tolerance.absolute})


class NotApplicable(Exception):
    """The model or this machine does not allow the variant; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to export.

    Attributes:
        eager: the trained module in eval mode, float32, on the CPU. Makers work on copies.
    """

    name: str
    definition: Definition
    eager: nn.Module


@dataclass(frozen=True, slots=True)
class Draft:
    """A file that a maker wrote, not yet verified.

    Attributes:
        made_by: the functions used, for the manifest.
        native: requirements of its compiled code; None: it has none.
        later_stages: further files that run after it.
    """

    file: str
    made_by: str
    device_kinds: tuple[DeviceKind, ...]
    native: NativeCode | None = None
    later_stages: tuple[str, ...] = ()
    format: Format = "torchscript"

    @property
    def files(self) -> tuple[str, ...]:
        """All written files, in the order in which they run."""
        return (self.file, *self.later_stages)


class VariantMaker(Protocol):
    """Makes one variant."""

    @property
    def precision(self) -> Precision:
        """The precision to compute in; inputs and outputs keep the manifest's dtypes."""

    def make(self, subject: Subject, folder: Path) -> Draft:
        """Write the variant's file into the folder.

        Raises:
            NotApplicable: if the model or the machine does not allow it.
            ExportError: if it should have worked but failed.
        """
