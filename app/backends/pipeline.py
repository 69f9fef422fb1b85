"""A model in stages, each on its own device, through which parts of a batch pass in order.

While the second stage computes the first part of a batch, the first stage computes the second part:
all devices compute at once, except at the beginning and the end of a batch.
"""

from __future__ import annotations

import queue
import statistics
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from app.backends.base import Backend, Between, Warmed, size_of
from app.backends.forward import FormBackend, run_forward
from app.errors import ReplicaError
from app.types import Arrays, Device, ServedStep, Serving
from models.forms import Forward, sequence_of
from models.manifest import Manifest
from models.plan import Form
from models.timing import nothing, time_interleaved

HOST = torch.device("cpu")
MAX_PARTS = 16  # of one batch
ROUNDS = 7
BUDGET_S = 0.5  # for each batch size
CLOSE_PATIENCE_S = 1.0  # for each stage; an idle stage ends at once

# Called first in the thread of a stage.
Begin = Callable[[], None]


class Stage(NamedTuple):
    """A loaded stage and its device."""

    forward: Forward
    device: torch.device


class _Work(NamedTuple):
    """A part of a batch in flight; its result goes to `ends`."""

    number: int
    tensors: Sequence[torch.Tensor]
    ends: queue.SimpleQueue[tuple[int, Any]]


Queue: TypeAlias = queue.SimpleQueue[_Work | None]


class Pipeline:
    """Stages as one forward, from host memory to host memory, for one batch at a time.

    Each stage has a daemon thread: native code that never returns must not keep the process alive.

    Args:
        stages: stages in order.
        begin: called first in each thread.
    """

    def __init__(self, stages: Sequence[Stage], begin: Begin) -> None:
        queues: list[Queue] = [queue.SimpleQueue() for _ in stages]
        self._first = queues[0]
        self._sizes: list[int] = []
        self._parts: list[int] = []  # number of parts of a batch of that size
        self._stages = len(stages)
        self._threads = []
        for number, stage in enumerate(stages):
            work = partial(_run, stage, queues[number], (*queues[number + 1 :], None)[0], begin)
            thread = threading.Thread(target=work, name=f"stage-{number + 1}", daemon=True)
            thread.start()
            self._threads.append(thread)
        # Threads hold no reference to this object: an unclosed pipeline ends with its last user.
        self._end = weakref.finalize(self, _end, queues)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """One forward; each tensor has the batch on axis 0."""
        return self.run(tensors, self.parts_of(len(tensors[0])))

    def parts_of(self, rows: int) -> int:
        """Number of parts for a batch of this size."""
        at = min(bisect_left(self._sizes, rows), len(self._sizes) - 1)
        return min(rows, self._parts[at] if self._sizes else 2 * self._stages)

    def cut(self, rows: int, parts: int) -> None:
        """Set the number of parts for batches of this size."""
        at = bisect_left(self._sizes, rows)
        if at < len(self._sizes) and self._sizes[at] == rows:
            self._parts[at] = parts
        else:
            self._sizes.insert(at, rows)
            self._parts.insert(at, parts)

    def run(self, tensors: Sequence[torch.Tensor], parts: int) -> Any:
        """One forward in several parts, whose outputs are concatenated.

        Raises:
            Exception: the error of a stage; if several parts fail, the first part's error.
        """
        ends: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        cut = list(zip(*(torch.chunk(tensor, max(1, parts)) for tensor in tensors), strict=True))
        for number, part in enumerate(cut):
            self._first.put(_Work(number, part, ends))
        made: list[Any] = [None] * len(cut)
        for _ in cut:  # all parts, even if one fails: the next batch needs empty stages
            number, one = ends.get()
            made[number] = one
        try:
            for one, part in zip(made, cut, strict=True):
                if isinstance(one, BaseException):
                    raise one
                _check_rows(one, len(part[0]))
            if isinstance(made[0], torch.Tensor):
                return torch.cat(made)
            return [torch.cat(outputs) for outputs in zip(*made, strict=True)]
        finally:  # an error keeps these frames alive, which would keep the error
            del one, part, made, cut, tensors

    def close(self) -> None:
        """End the threads and wait for them, except for one that hangs; may be called twice."""
        self._end()
        for thread in self._threads:
            thread.join(CLOSE_PATIENCE_S)


def _end(queues: Sequence[Queue]) -> None:
    for each in queues:
        each.put(None)


def _run(stage: Stage, works: Queue, later: Queue | None, begin: Begin) -> None:
    """The thread of a stage."""
    begin()
    while (work := works.get()) is not None:
        made: Any = None
        try:
            with torch.inference_mode():
                made = stage.forward(*(each.to(stage.device) for each in work.tensors))
                if later is None:
                    made = _on_host(made)
            if later is None:
                work.ends.put((work.number, made))
            else:
                later.put(_Work(work.number, sequence_of(made), work.ends))
        except BaseException as error:  # raised in the thread that waits for the batch
            work.ends.put((work.number, error))
        finally:  # an idle stage must not keep the last batch alive
            del work, made


def _check_rows(made: Any, rows: int) -> None:
    """Check a part's number of rows: an extra row would shift the answers of the next part."""
    for tensor in sequence_of(made):
        if isinstance(tensor, torch.Tensor) and (tensor.ndim == 0 or len(tensor) != rows):
            raise ValueError(
                f"a part of {rows} items returned a tensor of shape {list(tensor.shape)}"
            )


class PipelineBackend(FormBackend):
    """A variant in stages over several devices; see `app.backends.base.Backend`.

    Args:
        folder: see `FormBackend`, as for the manifest.
        manifest: the artifact's manifest.
        form: a form of a variant with stages.
        devices: one for each stage.
        begin: called first in the thread of each stage.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        form: Form,
        devices: Sequence[Device],
        begin: Begin,
    ) -> None:
        super().__init__(folder, manifest, form, devices[0])
        self._devices = [torch.device(str(device)) for device in devices]
        self._begin = begin
        self._pipeline: Pipeline | None = None

    def load(self) -> None:
        stages = [
            Stage(self.opened([name], device), device)
            for name, device in zip(self.variant.files, self._devices, strict=True)
        ]
        self._pipeline = Pipeline(stages, self._begin)

    def warm_up(self, batches: Iterable[Arrays], between: Between = nothing) -> Warmed:
        """See `Backend`; measures the best number of parts for each batch size."""
        pipeline, rows = self._loaded(), 1
        for batch in batches:
            rows = size_of(batch)
            runs: dict[int, Callable[[], object]] = {}
            for parts in (1 << power for power in range(MAX_PARTS.bit_length())):
                if parts <= rows:
                    runs[parts] = partial(self._run_in, parts, batch)
            taken = time_interleaved(runs, ROUNDS, BUDGET_S, between)
            pipeline.cut(rows, min(taken, key=lambda parts: statistics.median(taken[parts])))
        return Warmed(rows)

    def shares(self, other: Backend) -> bool:
        return False  # each has threads, and a number of parts for each size, of its own

    def run(self, inputs: Arrays) -> Arrays:
        return run_forward(self._loaded(), inputs, self.manifest, HOST)

    def serving(self) -> Serving:
        where = ", ".join(str(device) for device in self._devices)
        return Serving((ServedStep(None, f"{self.form} on {where}"),))

    def close(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
        self._pipeline = None
        if any(device.type == "cuda" for device in self._devices):
            torch.cuda.empty_cache()

    def _run_in(self, parts: int, inputs: Arrays) -> Arrays:
        def forward(*tensors: torch.Tensor) -> Any:
            return self._loaded().run(tensors, parts)

        return run_forward(forward, inputs, self.manifest, HOST)

    def _loaded(self) -> Pipeline:
        if self._pipeline is None:
            raise ReplicaError("bug: the backend runs although it is not loaded")
        return self._pipeline


def _on_host(made: Any) -> Any:
    if isinstance(made, torch.Tensor):
        return made.cpu()
    return [each.cpu() if isinstance(each, torch.Tensor) else each for each in made]
