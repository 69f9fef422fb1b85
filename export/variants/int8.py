"""`int8`: post-training quantization, by row or static.

Where large linear layers do most of the multiplications, each row of activations gets its scale at
run time, in TorchScript. In other models, layers with weights are quantized statically: scales per
output channel for weights, and for activations the ranges that calibration data has. OpenVINO runs
them. Recurrent layers stay float32. Background: docs/adr/0008-quantization.md.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.artifact import write_file
from export.errors import ExportError, reason
from export.variants.base import Draft, NotApplicable, Subject
from export.variants.graphs import OnnxModule
from export.variants.layers import replace_layers
from export.variants.onnx import exporter, onnx_of
from export.variants.openvino import convert, name_of
from export.variants.programs import quiet
from export.variants.rowwise import MIN_WEIGHTS, rowwise
from export.variants.torchscript import example_of, freeze, in_python, save, script_or_trace
from export.variants.work import work_of
from models.choices import Precision
from models.runtimes.openvino_models import openvino
from models.system.extras import NotInstalled
from models.tensors import Arrays

MIN_SHARE = 0.5  # of the multiplications: below, other layers take most of the time
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # what is quantized of an ONNX graph
CALIBRATION_S = 60.0  # no batch begins later: operator by operator, a large model takes long


@dataclass(frozen=True, slots=True)
class Int8:
    """Makes `int8`."""

    precision: Precision = "int8"

    def make(self, subject: Subject, folder: Path) -> Draft:
        """Quantize by row or statically, by what does most of the model's work.

        Raises:
            NotApplicable: if there is nothing to quantize, or a package is missing or fails to.
            ExportError: if the calibration data is empty.
        """
        if isinstance(subject.eager, OnnxModule):  # of which nothing is known before it is read
            return _static(subject, folder)
        subject = in_python(subject)
        work = work_of(subject.eager, example_of(subject), MIN_WEIGHTS)
        if work.share(work.linear) > MIN_SHARE:
            return _by_row(subject, folder)
        if (share := work.share(work.linear + work.convolutions)) > MIN_SHARE:
            return _static(subject, folder)
        raise NotApplicable(
            f"convolutions, and linear layers of at least {MIN_WEIGHTS:,} weights, do {share:.0%} "
            f"of the multiplications of an item, and more than {MIN_SHARE:.0%} would be needed"
        )


def _by_row(subject: Subject, folder: Path) -> Draft:
    try:
        module = replace_layers(subject.eager, rowwise).eval()
    except Exception as error:  # modules may contain objects that cannot be copied
        raise NotApplicable(f"quantization failed: {reason(error)}") from error
    script, method = script_or_trace(module, example_of(subject))
    save(freeze(script), folder / "int8.pt")
    return Draft("int8.pt", f"int8 by row, without calibration + torch.jit.{method}", ("cpu",))


def _static(subject: Subject, folder: Path) -> Draft:
    batches = _calibration(subject)
    try:
        runtime, package = exporter(), openvino()
    except NotInstalled as error:
        raise NotApplicable(str(error)) from error
    data, how = onnx_of(subject)
    try:
        with quiet():
            model, count = _quantize(data, batches)
    except Exception as error:  # it raises many classes
        raise NotApplicable(f"ONNX Runtime cannot quantize it: {reason(error)}") from error
    if model is None:
        raise NotApplicable("there is no convolution and no matrix product to quantize")
    write_file(folder / "int8.zip", convert(package, model, subject.definition.inputs))
    by = f"quantize_static of ONNX Runtime {runtime.__version__}, {count} items"
    return Draft("int8.zip", f"{how} + {by} + {name_of(package)}", ("cpu",), format="openvino")


def _quantize(data: bytes, batches: Sequence[Arrays]) -> tuple[bytes | None, int]:
    """Quantize an ONNX model: weights by channel, and the inputs of their operators.

    Their outputs stay float32, so that OpenVINO computes what follows an operator with it: with
    both quantized, a MobileNet took 1.4 times as long. Weights have 7 bits: with 8, sums overflow
    on processors without VNNI, so an answer would depend on the processor.

    Returns:
        the model, or None if nothing was quantized; and the number of items used.
    """
    import onnx  # noqa: PLC0415 - optional
    from onnxruntime import quantization  # noqa: PLC0415

    model = onnx.load_model_from_string(data)
    weights = {each.name for each in model.graph.initializer}
    names = [each.name for each in model.graph.input if each.name not in weights]
    reader = _CalibrationReader(names, batches)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "model.onnx"
        quantization.quantize_static(
            model,
            str(file),
            reader,
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=list(WEIGHTED),
            per_channel=True,
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={
                "MatMulConstBOnly": True,
                "OpTypesToExcludeOutputQuantization": list(WEIGHTED),
            },
        )
        content = file.read_bytes()
    operators = {node.op_type for node in onnx.load_model_from_string(content).graph.node}
    return (content if "DequantizeLinear" in operators else None), reader.count


class _CalibrationReader:
    """Gives batches to the quantizer, while there is time; an input's name -> its array.

    Attributes:
        count: the number of items given.
    """

    def __init__(self, names: Sequence[str], batches: Sequence[Arrays]) -> None:
        self.count = 0
        self._batches = self._in_time(names, batches)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch; None: there are no more."""
        return next(self._batches, None)

    def _in_time(self, names: Sequence[str], batches: Sequence[Arrays]) -> Iterator[dict[str, Any]]:
        ends_at = time.monotonic() + CALIBRATION_S
        for batch in batches:
            if self.count and time.monotonic() > ends_at:
                return
            self.count += len(next(iter(batch.values())))
            yield dict(zip(names, batch.values(), strict=True))


def _calibration(subject: Subject) -> list[Arrays]:
    """Return the batches, with the inputs in the model's order."""
    definition = subject.definition
    if definition.calibration is None:
        raise NotApplicable(
            "there is no calibration data: `adopt` reads it with --examples, and a definition "
            "returns it from `calibration`"
        )
    batches: list[Arrays] = [
        {spec.name: batch[spec.name] for spec in definition.inputs}
        for batch in definition.calibration()
        if all(array.size for array in batch.values())
    ]
    if not batches:
        raise ExportError(
            f"the calibration data of {subject.name!r} is empty: let `calibration` of its "
            "definition return some real inputs, or leave int8 out (--variants)"
        )
    return batches
