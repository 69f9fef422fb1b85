"""What a way of making a variant must offer, and what it works on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from torch import nn

from models.definitions.definition import Definition
from models.manifest import NativeCode
from models.plan import Precision
from models.processor import DeviceKind
from models.tensors import Tolerance

# How far a variant may be from eager float32. Explicit, and in the manifest: the server replays the
# golden examples against them.
TOLERANCES: dict[Precision, Tolerance] = {
    # Other kernels add in another order, nothing more.
    "float32": Tolerance(absolute=1e-5, relative=1e-4, of_range=1e-5),
    # 11 bits of mantissa, 8 bits, and 256 levels: errors are shares of the largest values summed.
    # An index of two nearly equal scores may be another one: what that costs, accuracy tells.
    "fp16": Tolerance(absolute=1e-3, relative=0, of_range=0.01, exact_integers=False),
    "bf16": Tolerance(absolute=0.01, relative=0, of_range=0.05, exact_integers=False),
    "int8": Tolerance(absolute=0.05, relative=0, of_range=0.25, exact_integers=False),
}


class NotApplicable(Exception):
    """The model, or this machine, does not allow the variant; the message is its reason."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is exported.

    Attributes:
        name: of the model.
        definition: its public contract and its data.
        eager: the module as it is: trained, in eval mode, float32, on the CPU. Makers work on
            copies.
    """

    name: str
    definition: Definition
    eager: nn.Module


@dataclass(frozen=True, slots=True)
class Draft:
    """A file that a maker wrote, not proved yet.

    Attributes:
        file: its name in the folder.
        made_by: by which functions, for the manifest.
        device_kinds: where it runs.
        native: what its machine code needs; None where it has none.
        later_stages: files that were written beside it, and run after it.
    """

    file: str
    made_by: str
    device_kinds: tuple[DeviceKind, ...]
    native: NativeCode | None = None
    later_stages: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """All that were written, in the order in which they run."""
        return (self.file, *self.later_stages)

    @property
    def format(self) -> Literal["torchscript", "aotinductor"]:
        """As the manifest calls it."""
        return "torchscript" if self.native is None else "aotinductor"


class Maker(Protocol):
    """Makes one variant."""

    @property
    def precision(self) -> Precision:
        """What it computes in; inputs and outputs keep the manifest's dtypes."""

    def make(self, subject: Subject, folder: Path) -> Draft:
        """Write the variant's file into the folder.

        Raises:
            NotApplicable: if the model or the machine does not allow it.
            ExportError: if it should have worked.
        """
