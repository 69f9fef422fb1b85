"""`int8`: post-training quantization, saved as TorchScript.

Models with convolutions are quantized statically: weights and activations, calibrated on the
model's data. In others, linear layers scale each row of activations at run time. Recurrent layers
stay float32: torch scales their activations by the whole batch, so that other items would change an
answer. Background: docs/adr/0008-quantization.md.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from export.errors import ExportError, reason
from export.variants.base import Draft, NotApplicable, Subject
from export.variants.layers import replaced
from export.variants.rowwise import pays, rowwise
from export.variants.torchscript import example_of, freeze, in_python, save, script_or_trace
from models.forms import input_tensors
from models.plan import Precision
from models.tensors import Arrays

CONVOLUTIONS: set[type[nn.Module]] = {nn.Conv1d, nn.Conv2d, nn.Conv3d}


@dataclass(frozen=True, slots=True)
class Int8:
    """See `export.variants.base.Maker`."""

    precision: Precision = "int8"

    def make(self, subject: Subject, folder: Path) -> Draft:
        """See `Maker`.

        Raises:
            NotApplicable: if there is nothing to quantize, or torch fails to.
            ExportError: if the definition's calibration data is empty.
        """
        subject = in_python(subject)
        layers = {type(layer) for layer in subject.eager.modules()}  # no subclasses, as in torch.ao
        with warnings.catch_warnings():
            # torch.ao.quantization announces its successor at every call; the ADR explains our use.
            warnings.simplefilter("ignore")
            if layers & CONVOLUTIONS:
                batches = _calibration(subject)  # first, as the import below is slow
                module = _static(subject, batches)
                how = f"torch.ao.quantization.prepare_fx + convert_fx (static), {_engine()}"
            elif any(map(pays, subject.eager.modules())):
                module, how = _rowwise(subject), "int8 by row"
            else:
                raise NotApplicable("there is no convolution and no large linear layer to quantize")
            compiled, method = script_or_trace(module, example_of(subject))
        save(freeze(compiled), folder / "int8.pt")
        return Draft("int8.pt", f"{how} + torch.jit.{method}", ("cpu",))


def _engine() -> str:
    engine: str = torch.backends.quantized.engine  # x86 or qnnpack, chosen by torch
    return engine


def _static(subject: Subject, batches: Sequence[Arrays]) -> nn.Module:
    from torch.ao.quantization import get_default_qconfig_mapping  # noqa: PLC0415 - slow
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx  # noqa: PLC0415

    try:
        prepared = prepare_fx(
            copy.deepcopy(subject.eager),
            get_default_qconfig_mapping(_engine()),
            example_of(subject),
        )
        with torch.inference_mode():
            for batch in batches:
                prepared(*input_tensors(batch, subject.definition.inputs))
        converted = convert_fx(prepared)
    except Exception as error:  # anything from torch.fx or the model's code
        raise NotApplicable(f"torch.fx cannot follow the model: {reason(error)}") from error
    for node in converted.graph.nodes:
        node.type = None  # TorchScript does not resolve the types that FX writes next to its names
    converted.recompile()
    return converted


def _rowwise(subject: Subject) -> nn.Module:
    try:
        return replaced(copy.deepcopy(subject.eager), rowwise).eval()
    except Exception as error:  # modules may contain objects that cannot be copied
        raise NotApplicable(f"quantization failed: {reason(error)}") from error


def _calibration(subject: Subject) -> list[Arrays]:
    calibration = subject.definition.calibration
    if calibration is None:
        raise NotApplicable("the definition has no calibration data, which convolutions need")
    batches = [batch for batch in calibration() if all(array.size for array in batch.values())]
    if not batches:
        raise ExportError(
            f"the calibration data of {subject.name!r} is empty: let `calibration` of its "
            "definition return some real inputs, or leave int8 out (--variants)"
        )
    return batches
