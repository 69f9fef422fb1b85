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

from app.backends.base import Backend, Between, WarmUp, size_of
from app.backends.forward import FormBackend, run_forward
from app.errors import ReplicaError
from app.types import Arrays, Device, ServedStep, Serving
from models.manifest import Manifest
from models.plan import Form
from models.runtimes.forms import Forward, sequence_of
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


class _StagePart(NamedTuple):
    """A part of a batch in flight; its result goes to `ends`."""

    number: int
    tensors: Sequence[torch.Tensor]
    ends: queue.SimpleQueue[tuple[int, Any]]


Queue: TypeAlias = queue.SimpleQueue[_StagePart | None]


class Pipeline:
    """Stages as one forward, from host memory to host memory, for one batch at a time.

    Each stage has a daemon thread: native code that never returns must not keep the process alive.

    Args:
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

    def set_parts(self, rows: int, parts: int) -> None:
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
        chunks = list(zip(*(torch.chunk(tensor, max(1, parts)) for tensor in tensors), strict=True))
        for number, part in enumerate(chunks):
            self._first.put(_StagePart(number, part, ends))
        results: list[Any] = [None] * len(chunks)
        for _ in chunks:  # all parts, even if one fails: the next batch needs empty stages
            number, one = ends.get()
            results[number] = one
        try:
            for one, part in zip(results, chunks, strict=True):
                if isinstance(one, BaseException):
                    raise one
                _check_rows(one, len(part[0]))
            if isinstance(results[0], torch.Tensor):
                return torch.cat(results)
            return [torch.cat(outputs) for outputs in zip(*results, strict=True)]
        finally:  # an error keeps these frames alive, which would keep the error
            del one, part, results, chunks, tensors

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
        result: Any = None
        try:
            with torch.inference_mode():
                result = stage.forward(*(each.to(stage.device) for each in work.tensors))
                if later is None:
                    result = _on_host(result)
            if later is None:
                work.ends.put((work.number, result))
            else:
                later.put(_StagePart(work.number, sequence_of(result), work.ends))
        except BaseException as error:  # raised in the thread that waits for the batch
            work.ends.put((work.number, error))
        finally:  # an idle stage must not keep the last batch alive
            del work, result


def _check_rows(result: Any, rows: int) -> None:
    """Check a part's number of rows: an extra row would shift the answers of the next part."""
    for tensor in sequence_of(result):
        if isinstance(tensor, torch.Tensor) and (tensor.ndim == 0 or len(tensor) != rows):
            raise ValueError(
                f"a part of {rows} items returned a tensor of shape {list(tensor.shape)}"
            )


class PipelineBackend(FormBackend):
    """A variant in stages over several devices; see `app.backends.base.Backend`.

    Args:
        folder: see `FormBackend`, as for the manifest.
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
            Stage(self.open_files([name], device), device)
            for name, device in zip(self.variant.files, self._devices, strict=True)
        ]
        self._pipeline = Pipeline(stages, self._begin)

    def warm_up(self, batches: Iterable[Arrays], between: Between = nothing) -> WarmUp:
        """See `Backend`; measures the best number of parts for each batch size."""
        pipeline, rows = self._get_forward(), 1
        for batch in batches:
            rows = size_of(batch)
            runs: dict[int, Callable[[], object]] = {}
            for parts in (1 << power for power in range(MAX_PARTS.bit_length())):
                if parts <= rows:
                    runs[parts] = partial(self._run_in, parts, batch)
            times_by_parts = time_interleaved(runs, ROUNDS, BUDGET_S, between)
            pipeline.set_parts(
                rows,
                min(times_by_parts, key=lambda parts: statistics.median(times_by_parts[parts])),
            )
        return WarmUp(rows)

    def shares(self, other: Backend) -> bool:
        return False  # each has threads, and a number of parts for each size, of its own

    def run(self, inputs: Arrays) -> Arrays:
        return run_forward(self._get_forward(), inputs, self.manifest, HOST)

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
            return self._get_forward().run(tensors, parts)

        return run_forward(forward, inputs, self.manifest, HOST)

    def _get_forward(self) -> Pipeline:
        if self._pipeline is None:
            raise ReplicaError("bug: the backend runs although it is not loaded")
        return self._pipeline


def _on_host(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.cpu()
    return [each.cpu() if isinstance(each, torch.Tensor) else each for each in result]
