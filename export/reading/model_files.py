"""Opens files of models that were created elsewhere; never unpickles anything in them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable

import torch
from torch import nn

from export.errors import ExportError, reason
from export.reading import advice
from export.reading.onnx_files import is_onnx, read_onnx
from export.reading.programs import TRACED, Program, read_program
from models.runtimes.operators import load_operators, operators_in
from models.runtimes.torchscript import read_torchscript
from models.system.archive import ArchiveError, check_archive, read_entries
from models.system.extras import NotInstalled
from models.system.memory_files import named_file

ARCHIVE_FORMAT = "archive_format"  # a file in archives that torch.export writes
# Raised by torch for an invalid file, and for inputs that do not fit.
FAILURES = (
    *(torch.jit.Error, RuntimeError, ValueError, TypeError),
    *(LookupError, AttributeError, MemoryError),
)


def archive_names(data: bytes, what: str, *, of_torch: bool = False) -> list[str]:
    """Check a zip archive before it is unpacked, and return the names in it.

    Args:
        data: the file.
        what: its name, for messages.
        of_torch: whether torch must have written it; False: it may be a `.mar`.

    Raises:
        ExportError: if it is not a zip archive, or must not be unpacked.
    """
    try:
        return check_archive(io.BytesIO(data), what, of_torch=of_torch)
    except ArchiveError as error:
        raise ExportError(advice.of_data(data, what) or str(error)) from error


def is_program(names: Iterable[str]) -> bool:
    """Whether an archive with these names was written by torch.export."""
    return any(name.partition("/")[2] == ARCHIVE_FORMAT for name in names)


def program_in(data: bytes, what: str) -> Program | None:
    """Return the model in a file of a kind that describes its inputs; None: of another kind.

    Raises:
        ExportError: see `read_onnx` and `read_program`.
    """
    if is_onnx(data, what):
        return read_onnx(data, what)
    names = archive_names(data, what, of_torch=True)
    if not is_program(names):
        return None
    _check_intact(data, what, names)
    return read_program(data, what)


def load(data: bytes, what: str) -> nn.Module:
    """Load the module in a file, on the CPU, in eval mode.

    Returns a ScriptModule for a TorchScript file, a GraphModule for a torch.export program, an
    OnnxModule for an ONNX file.

    Raises:
        ExportError: if it is something else; the message says what it is and what to do.
    """
    if (program := program_in(data, what)) is not None:
        return program.module
    names = archive_names(data, what, of_torch=True)
    _check_intact(data, what, names)
    files = {name.partition("/")[2] for name in names}
    if not {"data.pkl", "constants.pkl"} <= files:
        raise ExportError(advice.of_files(files, what))
    try:
        load_operators(operators_in(io.BytesIO(data), what, names))
    except NotInstalled as error:
        raise ExportError(f"{what} cannot be loaded here: {error}") from error
    try:
        with named_file(data) as path:
            module = read_torchscript(path, torch.device("cpu"))
    except FAILURES as error:
        raise ExportError(f"torch cannot read {what}: {reason(error)}") from error
    if not isinstance(module, torch.jit.ScriptModule) or not hasattr(module, "forward"):
        raise ExportError(f"{what} has no method forward, which a server calls")
    return module


def _check_intact(data: bytes, what: str, names: Iterable[str]) -> None:
    """Check the checksums, which torch ignores when it reads weights.

    Raises:
        ExportError: if the archive is damaged.
    """
    try:
        for _ in read_entries(io.BytesIO(data), what, names):
            pass
    except ArchiveError as error:
        hint = f"; {TRACED}" if _lacks_weights(data) else ""
        raise ExportError(f"{error}; copy or save it again{hint}") from error


def _lacks_weights(data: bytes) -> bool:
    """Whether torch wrote an entry for a weight without memory, a tensor of a subclass."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return any(each.file_size and not each.CRC for each in archive.infolist())
