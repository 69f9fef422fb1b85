"""`openvino`: a model of Intel's OpenVINO, whose kernels are often the fastest on a CPU."""

from __future__ import annotations

import tempfile
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
from models.runtimes.openvino_models import GRAPH, WEIGHTS, openvino, pack
from models.system.extras import NotInstalled
from models.tensors import TensorSpec

FILE = "openvino.zip"
# docs/experiments/forms.md has the table.
GAINS = ((("conv",), "; convolutional networks took 14 to 40 % less time with it"),)


@dataclass(frozen=True, slots=True)
class OpenVino:
    """Makes `openvino`."""

    precision: Precision = "float32"

    def make(self, subject: Subject, folder: Path) -> Draft:
        try:
            package = openvino()
        except NotInstalled as error:
            raise NotApplicable(f"{error}{expected_gain(subject.eager, GAINS)}") from error
        source: torch.export.ExportedProgram | bytes
        if isinstance(subject.eager, OnnxModule):
            source, how = subject.eager.data, "ONNX as it was given"
        else:
            source, how = cpu_program(subject), "torch.export"
        data = convert(package, source, subject.definition.inputs)
        write_file(folder / FILE, data)
        return Draft(FILE, f"{how} + {name_of(package)}", ("cpu",), format="openvino")


def name_of(package: Any) -> str:
    """Return the package's name and version."""
    return f"OpenVINO {package.__version__.partition('-')[0]}"


def convert(
    package: Any, source: torch.export.ExportedProgram | bytes, inputs: tuple[TensorSpec, ...]
) -> bytes:
    """Convert a program, or an ONNX file, to an archive as servers load it.

    Raises:
        NotApplicable: if OpenVINO cannot convert it.
    """
    try:
        with quiet():
            return _convert(package, source, inputs)
    except Exception as error:  # its front end raises many classes
        raise NotApplicable(f"OpenVINO cannot convert it: {reason(error)}") from error


def _convert(
    package: Any, source: torch.export.ExportedProgram | bytes, inputs: tuple[TensorSpec, ...]
) -> bytes:
    """Convert it, but not by `openvino.convert_model`, which reports its use over the internet."""
    from openvino.frontend import FrontEndManager  # noqa: PLC0415 - optional
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder  # noqa: PLC0415

    if isinstance(source, bytes):
        model = package.Core().read_model(source)
    else:
        front_end = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchFXPythonDecoder.from_exported_program(source)  # must outlive the model
        model = front_end.convert(front_end.load(decoder))
    shapes = {}
    for index, spec in enumerate(inputs):
        axes = [package.Dimension(axis.least, axis.most) for axis in spec.axes]
        shapes[index] = package.PartialShape([package.Dimension(-1), *axes])
    model.reshape(shapes)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / GRAPH
        package.save_model(model, file, compress_to_fp16=False)
        return pack(file.read_bytes(), file.with_name(WEIGHTS).read_bytes())
