"""Turns a model into a `torch.export` program with a free batch axis."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from export.errors import reason
from export.variants.base import NotApplicable, Subject
from export.variants.torchscript import example_of, in_python
from models.processor import DeviceKind

MAX_BATCH = 65_536
# Several variants begin with the same program, which takes seconds to make.
_PROGRAMS: weakref.WeakKeyDictionary[nn.Module, torch.export.ExportedProgram] = (
    weakref.WeakKeyDictionary()
)


def program_of(subject: Subject, kind: DeviceKind) -> torch.export.ExportedProgram:
    """Return the model's program for a kind of device; free axes of one name are one dimension.

    On the CPU it shares the model's weights, and is made once.

    Raises:
        Exception: what torch.export raises for a model that it cannot export.
    """
    if kind != "cpu":
        return _export(subject, copy.deepcopy(subject.eager).to(kind), kind)
    program = _PROGRAMS.get(subject.eager)
    if program is None:
        program = _PROGRAMS[subject.eager] = _export(subject, subject.eager, kind)
    return program


def _export(subject: Subject, module: nn.Module, kind: DeviceKind) -> torch.export.ExportedProgram:
    definition = subject.definition
    batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    free: list[dict[int, Any]] = []
    dims_by_name: dict[str, Any] = {}
    for index, spec in enumerate(definition.inputs):
        dims: dict[int, Any] = {0: batch}
        for at, axis in enumerate(spec.axes, start=1):
            least = max(1, axis.least)
            if axis.most > least:
                dim = torch.export.Dim(f"input{index}_axis{at}", min=least, max=axis.most)
                dims[at] = dim if axis.name is None else dims_by_name.setdefault(axis.name, dim)
        free.append(dims)
    # Sizes of 0 and 1 would become constants, so the example has larger sizes on free axes.
    example = tuple(
        torch.zeros(
            [3, *(max(axis.least, min(3, axis.most)) for axis in spec.axes)],
            dtype=tensor.dtype,
            device=kind,
        )
        for spec, tensor in zip(definition.inputs, example_of(subject), strict=True)
    )
    with torch.no_grad():
        return torch.export.export(module, example, dynamic_shapes=tuple(free))


def cpu_program(subject: Subject) -> torch.export.ExportedProgram:
    """Return the program of any model for another runtime on the CPU.

    Raises:
        NotApplicable: if torch.export cannot export it.
    """
    subject = in_python(subject)
    try:
        return program_of(subject, "cpu")
    except Exception as error:  # torch.export raises many classes
        raise NotApplicable(f"torch.export failed: {reason(error)}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence converters and compilers, which report in four ways; errors still raise."""
    logs = [logging.getLogger(), logging.getLogger("torch")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    output = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(output),
            contextlib.redirect_stdout(output),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
