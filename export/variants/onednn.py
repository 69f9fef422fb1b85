"""`onednn`: float32 linear layers by oneDNN, with weights packed for the processor at load.

By default torch computes them with MKL, which does not use AVX-512 on processors by other vendors
than Intel. Measurement decides where this variant serves: docs/adr/0028-onednn.md.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from export.errors import reason
from export.variants.base import Draft, NotApplicable, Subject
from export.variants.layers import replace_layers
from export.variants.torchscript import example_of, in_python, save, script_or_trace
from export.variants.work import work_of
from models.choices import Precision

# Copies to and from oneDNN's layout cost more than a smaller layer saves: on an AMD EPYC a layer of
# 576 x 120 gains nothing, one of 384 x 384 is twice as fast.
MIN_WEIGHTS = 1 << 17
MIN_SHARE = 0.5  # of the multiplications: below, other layers take most of the time


@dataclass(frozen=True, slots=True)
class OneDnn:
    """Makes `onednn`."""

    precision: Precision = "float32"

    def make(self, subject: Subject, folder: Path) -> Draft:
        """Replace the large linear layers.

        Raises:
            NotApplicable: if large linear layers are not most of the model, or torch has no oneDNN.
        """
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            raise NotApplicable("this torch was built without oneDNN")
        subject = in_python(subject)
        work = work_of(subject.eager, example_of(subject), MIN_WEIGHTS)
        share = work.share(work.linear)
        if share <= MIN_SHARE:
            raise NotApplicable(
                f"linear layers of at least {MIN_WEIGHTS:,} weights do {share:.0%} of the "
                f"multiplications of an item, and more than {MIN_SHARE:.0%} would be needed"
            )
        try:
            module = replace_layers(subject.eager, _pack)
        except Exception as error:  # modules may contain objects that cannot be copied
            raise NotApplicable(f"cannot replace linear layers: {reason(error)}") from error
        script, method = script_or_trace(module, example_of(subject))
        # Not frozen: constants in oneDNN's layout cannot be saved.
        save(script.eval(), folder / "onednn.pt")
        return Draft("onednn.pt", f"torch.utils.mkldnn + torch.jit.{method}", ("cpu",))


def _pack(module: nn.Module) -> nn.Module | None:
    """Return the oneDNN layer for a large linear one; None for other layers and subclasses."""
    if type(module) is not nn.Linear or module.weight.numel() < MIN_WEIGHTS:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch itself uses torch.jit at the first import
        from torch.utils.mkldnn import MkldnnLinear  # noqa: PLC0415

        layer: nn.Module = MkldnnLinear(module, torch.float32)
    return layer
