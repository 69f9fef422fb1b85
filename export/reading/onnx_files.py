"""Reads ONNX files that were created elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from export.errors import ExportError, reason
from export.reading import advice
from export.reading.programs import Program
from export.variants.graphs import OnnxModule
from export.variants.onnx import exporter
from models.runtimes.onnx_models import check_onnx
from models.system.archive import ArchiveError
from models.system.extras import NotInstalled

SUFFIX, BEGINNING = ".onnx", b"\x08"  # the first field of the message is a number
# ONNX Runtime's names of types -> those of inputs.
DTYPES: Mapping[str, str] = {
    **{f"tensor({name})": name for name in ("float16", "int8", "int16", "int32", "int64", "uint8")},
    **{"tensor(float)": "float32", "tensor(double)": "float64", "tensor(bool)": "bool"},
}
MAX_NAME = 64
NAME = re.compile("[A-Za-z][A-Za-z0-9_-]*")
OPSET = re.compile(r"Opset (\d+) .* till opset (\d+)")
FREE_BATCH = (
    "export it with a free batch size: torch.onnx.export(model, example, 'model.onnx', "
    "dynamic_shapes=({0: torch.export.Dim('batch')}, ...)), with an example of at least two items"
)


def is_onnx(data: bytes, what: str) -> bool:
    """Whether a file is an ONNX model, by its name or its beginning."""
    return what.lower().endswith(SUFFIX) or data.startswith(BEGINNING)


def read_onnx(data: bytes, what: str) -> Program:
    """Read an ONNX file.

    Raises:
        ExportError: if it is not a whole ONNX model, ONNX Runtime cannot run it, or its inputs
            cannot be served.
    """
    try:
        exporter()
        check_onnx(data, what)
        module = OnnxModule(data)
    except NotInstalled as error:
        raise ExportError(f"{what} is an ONNX model: {error}") from error
    except ArchiveError as error:
        raise ExportError(str(error)) from error
    except (RuntimeError, MemoryError) as error:
        raise ExportError(_unreadable(what, error)) from error
    inputs = tuple(_inputs(module.session.get_inputs(), what))
    _check_outputs(module.session.get_outputs(), what)
    module.names = plain_names(module.session.get_outputs())
    return Program(module, inputs, None)


def serving(module: OnnxModule, names: Sequence[str]) -> OnnxModule:
    """Return the model as a server needs it: with these outputs, in this order, as a tuple."""
    if tuple(names) == module.names:
        return OnnxModule(module.data)
    import onnx  # noqa: PLC0415 - optional

    model = onnx.load_model_from_string(module.data)
    outputs = dict(zip(module.names, model.graph.output, strict=True))
    selection = [outputs[name] for name in names]
    del model.graph.output[:]
    model.graph.output.extend(selection)
    return OnnxModule(model.SerializeToString())


def plain_names(values: Sequence[Any]) -> tuple[str, ...]:
    """Return names that a manifest accepts for inputs or outputs of a file, all different."""
    names: list[str] = []
    for index, each in enumerate(values):
        plain = re.sub("[^A-Za-z0-9_-]+", "_", each.name).strip("_-")[:MAX_NAME]
        others = (f"tensor_{number}" for number in range(index, index + len(values)))
        names.append(next(name for name in (plain, *others) if name and name not in names))
    return tuple(names)


def _check_outputs(outputs: Sequence[Any], what: str) -> None:
    """Check that answers can contain the outputs.

    Raises:
        ExportError: if one is not a tensor of numbers.
    """
    for each in outputs:
        if each.type not in DTYPES:
            raise ExportError(
                f"{what} returns {each.name!r} as {each.type}, which answers cannot contain: "
                "export it with tensors of numbers only (a classifier of skl2onnx: zipmap=False, "
                "and without its labels)"
            )


def _unreadable(what: str, error: Exception) -> str:
    newer = OPSET.search(str(error))
    cause = f"it has opset {newer[1]}, and opset {newer[2]} is the last" if newer else reason(error)
    how = ""
    if newer or "IR version" in cause:
        how = "; export it with a lower opset_version, or install a newer onnxruntime"
    return f"the installed ONNX Runtime cannot run {what}: {cause}{how}"


def _inputs(inputs: Sequence[Any], what: str) -> Iterator[str]:
    """Yield each input in the form of `adopt --input`; sizes of one name in the file are equal.

    Raises:
        ExportError: if an input is not a tensor that clients can send, or its batch is fixed.
    """
    batches = {each.shape[0] for each in inputs if each.shape}
    for each, name in zip(inputs, plain_names(inputs), strict=True):
        dtype = DTYPES.get(each.type)
        if dtype is None:
            kind = each.type.removeprefix("tensor(").rstrip(")")
            raise ExportError(
                f"{what} takes {each.name!r} as {each.type}, which clients cannot send"
                f"{advice.of_input(kind)}"
            )
        if not each.shape:
            raise ExportError(f"{what}: input {each.name!r} is not a tensor with a batch axis")
        batch, *sizes = each.shape
        if isinstance(batch, int) and batch > 0:
            raise ExportError(
                f"{what} accepts {each.name!r} only in batches of {batch}: {FREE_BATCH}"
            )
        dims = ["-1" if size in batches else _size(size) for size in sizes]
        yield f"{name}={dtype}[{','.join(['-1', *dims])}]"


def _size(size: int | str | None) -> str:
    """Return a fixed size, or the name of a free one, if it is a name and not a formula."""
    if isinstance(size, int):
        return str(size) if size > 0 else "-1"
    is_name = size is not None and len(size) <= MAX_NAME and NAME.fullmatch(size)
    return size if size is not None and is_name else "-1"
