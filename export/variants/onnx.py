"""`onnx`: an ONNX model for ONNX Runtime, often the fastest for recurrent networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from export.artifact import write_file
from export.errors import reason
from export.variants.base import Draft, NotApplicable, Subject
from export.variants.graphs import OnnxModule
from export.variants.programs import cpu_program, quiet
from export.variants.work import expected_gain
from models.choices import Precision
from models.system.extras import NotInstalled, import_package

FILE = "model.onnx"
# docs/experiments/forms.md has the table.
GAINS = (
    (("lstm", "gru"), "; an LSTM took 28 % less time with it, one item at a time"),
    (("conv",), "; convolutional networks took 17 to 38 % less time with it"),
)


@dataclass(frozen=True, slots=True)
class Onnx:
    """Makes `onnx`."""

    precision: Precision = "float32"

    def make(self, subject: Subject, folder: Path) -> Draft:
        try:
            version = exporter().__version__
        except NotInstalled as error:
            raise NotApplicable(f"{error}{expected_gain(subject.eager, GAINS)}") from error
        data, how = onnx_of(subject)
        write_file(folder / FILE, data)
        return Draft(FILE, f"{how}, ONNX Runtime {version}", ("cpu",), format="onnx")


def exporter() -> Any:
    """Import ONNX Runtime, which it returns, and what torch.onnx needs.

    Raises:
        NotInstalled: if one of them is missing.
    """
    names = ("onnx", "onnxscript", "onnxruntime")
    packages = [
        import_package(name, "ONNX Runtime and onnxscript", "onnx-export") for name in names
    ]
    return packages[-1]


def onnx_of(subject: Subject) -> tuple[bytes, str]:
    """Return the model as an ONNX file, and how it was made; needs `exporter`.

    Raises:
        NotApplicable: if it cannot be converted.
    """
    if isinstance(subject.eager, OnnxModule):
        return subject.eager.data, "ONNX as it was given"
    program = cpu_program(subject)
    try:
        with quiet():
            return _convert(program), "torch.export + torch.onnx"
    except Exception as error:  # the exporter raises many classes
        raise NotApplicable(f"torch.onnx cannot convert it: {reason(error)}") from error


def _convert(program: torch.export.ExportedProgram) -> bytes:
    """Convert a program; the file has nothing of the model's source."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass  # noqa: PLC0415 - optional

    onnx_program: Any = torch.onnx.export(program, verbose=False)
    ClearMetadataAndDocStringPass()(onnx_program.model)
    onnx_program.model.metadata_props.clear()
    data: bytes = onnx_program.model_proto.SerializeToString()
    return data
