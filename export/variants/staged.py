"""`staged`: the model as a chain of TorchScript files, each with its own device if needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from export.errors import reason
from export.variants.base import Draft, NotApplicable, Subject
from export.variants.torchscript import example_of, freeze, save, script_or_trace
from models.choices import Precision
from models.runtimes.forms import sequence_of

PREFIX = "stage"


@dataclass(frozen=True, slots=True)
class Staged:
    """Makes `staged`; the definition says where the model is split."""

    precision: Precision = "float32"

    def make(self, subject: Subject, folder: Path) -> Draft:
        parts: dict[str, torch.jit.ScriptModule] = {}
        methods: list[str] = []
        example = example_of(subject)
        for number, stage in enumerate(_stages(subject), start=1):
            where = f"stage {number}"
            try:
                script, method = script_or_trace(stage, example)
            except NotApplicable as error:
                raise NotApplicable(f"{where}: {error}") from error
            parts[f"{PREFIX}{number}.pt"] = freeze(script)
            methods.append(method)
            example = _run_stage(where, stage, example)
        try:
            for name, part in parts.items():
                save(part, folder / name)
        except NotApplicable:
            for name in parts:  # all of them, or none
                (folder / name).unlink(missing_ok=True)
            raise
        how = " + ".join(f"torch.jit.{method}" for method in methods)
        first, *later = parts
        return Draft(first, f"{how}, frozen", ("cpu", "cuda"), later_stages=tuple(later))


def _stages(subject: Subject) -> list[nn.Module]:
    if subject.definition.stages is None:
        raise NotApplicable("the definition declares no stages")
    try:
        stages = [stage.eval() for stage in subject.definition.stages(subject.eager)]
    except Exception as error:  # the model's own code may raise anything
        raise NotApplicable(f"the definition cannot split it: {reason(error)}") from error
    if len(stages) < 2:
        raise NotApplicable(f"the definition splits it into {len(stages)}; at least 2 are needed")
    return stages


def _run_stage(
    where: str, stage: nn.Module, example: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Run a stage; its outputs are the inputs of the next one."""
    try:
        with torch.inference_mode():
            outputs: Any = stage(*example)
    except Exception as error:  # the model's own code may raise anything
        raise NotApplicable(
            f"{where} fails on the first golden example: {reason(error)}"
        ) from error
    tensors = tuple(sequence_of(outputs))
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        kinds = ", ".join(type(each).__name__ for each in tensors) or "nothing"
        raise NotApplicable(
            f"{where} returns {kinds}; it must return a tensor, or a tuple of tensors"
        )
    return tensors
