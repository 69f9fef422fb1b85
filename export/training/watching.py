"""Watches every operation of a run, for the first NaN or for its time."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from export.errors import ExportError
from export.timing.profiling import compress, silence_recorder, trace_of
from export.training.places import frames_in, line_of

TRACE, TABLE = "profile.json.gz", "profile.txt"
WARM, RECORDED, ROWS = 3, 10, 10  # steps, steps, operators
UNWRITTEN = ("empty", "new_empty", "resize")  # return uninitialized memory


class NanWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises at the first operation that produces a NaN, forward or backward."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation and check its result."""
        result = func(*args, **(kwargs or {}))
        name: str = func.name().removeprefix("aten::")
        writes = func.namespace == "aten" and not name.startswith(UNWRITTEN)
        if writes and any(map(_has_nan, tree_leaves(result))):
            raise ExportError(f"the first NaN: {_describe(name.partition('.')[0])}")
        return result


def _has_nan(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    return bool(value.isnan().any())


def _describe(name: str) -> str:
    """Describe the operation with the line of the model or the loss that called it."""
    node: Any = torch._C._current_autograd_node()  # the backward's, if it is running
    if node is None:
        return f"`{name}` at {_place(traceback.extract_stack())}"
    stack = frames_in("".join(node.metadata.get("traceback_", ())))
    return f"`{name}` in the backward of `{node.name()}`, of what {_place(stack)} made"


def _place(stack: Sequence[traceback.FrameSummary]) -> str:
    return line_of(stack) or "an unknown place"


class StepProfiler(Callback):
    """Records ten steps of the first process, after three unrecorded ones."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder = folder
        self.console = console
        self.steps = 0
        self.recording: torch.profiler.profile | None = None

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: Any, index: int
    ) -> None:
        """Start recording after a few steps."""
        if self.steps == WARM and trainer.is_global_zero:
            silence_recorder()
            self.recording = torch.profiler.profile(acc_events=True)
            self.recording.start()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Stop recording after ten more."""
        self.steps += 1
        if self.steps == WARM + RECORDED:
            self._stop()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Stop recording in a run with fewer steps."""
        self._stop()

    def _stop(self) -> None:
        if self.recording is None:
            return
        self.recording.stop()
        averages = self.recording.key_averages()
        (self.folder / TRACE).write_bytes(compress(trace_of(self.recording)))
        table = averages.table(sort_by="self_cpu_time_total", row_limit=-1)
        (self.folder / TABLE).write_text(table)
        self.recording = None
        total = sum(each.self_cpu_time_total for each in averages) or 1
        longest = sorted(averages, key=lambda each: -each.self_cpu_time_total)[:ROWS]
        for each in longest:
            share = 100 * each.self_cpu_time_total / total
            self.console.print(f"{share:5.1f} %  {each.count:6}x  {each.key}", highlight=False)
        self.console.print(f"all operators: {self.folder / TABLE}; trace: {self.folder / TRACE}")
