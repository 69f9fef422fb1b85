"""Runs batches, so that a bad item never fails the others. In the replica's thread; no asyncio."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from app.backends.base import Backend, LaunchedBatch, LaunchingBackend
from app.engine.complaints import in_short
from app.engine.replica_thread import Later
from app.errors import BackendFailed, ModelError, NonFiniteOutput, OutOfMemory, ReplicaError
from app.types import (
    NO_DEVICE_TIMES,
    Array,
    Arrays,
    DeviceTimes,
    Item,
    Outcome,
    frozen_copy,
)
from models.padding import Padding
from models.timing import nothing

# Rows up to this size are views of one copy of their batch, and keep it alive until they are
# answered: a copy of each row takes 0.6 us. The cache makes its own copies.
SHARED_ROW_BYTES = 1024

Probe: TypeAlias = Callable[[Backend], None]
# Converts a batch's outputs, row by row, for answers and cache, such as logits to scores.
Finish: TypeAlias = Callable[[Arrays], Arrays]
# For each output of an item: its dtype, and its shape with -1 for a free size.
Layout: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Contract:
    """Requirements on the results of a model's batches.

    Attributes:
        outputs: the names of the outputs that every run must return.
        probe: replays a golden example; raises BackendError if the replica cannot answer it.
        finish: converts outputs for answers.
        padding: how items of different lengths share a batch; None if they do not.
        layout: the layout of an item's answer; None if unknown: the second cache is not used then.
    """

    outputs: Sequence[str]
    probe: Probe
    finish: Finish
    padding: Padding | None = None
    layout: Layout | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a batch.

    Attributes:
        outcomes: one per item, in order; None for items without an outcome after a replica's fault.
        fault: the replica's fault, if any.
        errors: the model's errors about single items, only for the log: they may contain paths and
            code.
        compute_s: seconds in the backend, including repeated runs.
        forwards: runs of the model; more than one means that the batch was split.
        out_of_memory_at: the smallest number of items that did not fit into the device's memory
            together, although each fits alone; 0 if all fitted.
        prepared_s: seconds until the device had the batch, if it was launched.
        device: times by the device's own clock; zeros if it has none.
    """

    outcomes: Sequence[Outcome | None]
    fault: ReplicaError | None
    errors: Sequence[ModelError]
    compute_s: float
    forwards: int
    out_of_memory_at: int = 0
    prepared_s: float = 0.0
    device: DeviceTimes = NO_DEVICE_TIMES


def run_batch(
    backend: Backend,
    items: Sequence[Item],
    contract: Contract,
    beat: Callable[[], None] = nothing,
) -> Report:
    """Run items of one signature as a batch; if it fails, split it until the bad item is alone.

    Args:
        backend: the model on this replica's device.
        items: at least one, all with one signature; with several lengths only if there is padding.
        contract: the contract of the model.
        beat: called before each run.
    """
    return _Run(backend, items, contract, beat).report()


def launch_batch(
    backend: LaunchingBackend,
    items: Sequence[Item],
    contract: Contract,
    beat: Callable[[], None],
) -> Later[Report]:
    """Like `run_batch`, but the thread may continue while the device computes.

    Args:
        backend: see `run_batch`, also for the other arguments.
        items: at least one.
        contract: the contract of the model.
        beat: called before each run.
    """
    run = _Run(backend, items, contract, beat)
    run.launch(backend)
    return Later(run.report, run.is_done, run.expected_s)


class _Run:
    def __init__(
        self,
        backend: Backend,
        items: Sequence[Item],
        contract: Contract,
        beat: Callable[[], None],
    ) -> None:
        self._beat = beat
        self._did_not_fit: list[tuple[int, int]] = []  # spans of items
        self._backend = backend
        self._items = items
        self._contract = contract
        self._probed = False
        self._unsure: list[int] = []  # items that failed alone since the model's last answer
        self._outcomes: list[Outcome | None] = [None] * len(items)
        self._forwards = 0
        self._errors: list[ModelError] = []
        self._started = time.perf_counter()
        self._launched: LaunchedBatch | None = None
        self._refused: Exception | None = None  # why it was not launched
        self._prepared_s = 0.0
        self._device = NO_DEVICE_TIMES

    def launch(self, backend: LaunchingBackend) -> None:
        """Start the whole batch on the device; `report` gets its result."""
        try:
            self._beat()
            padding = self._contract.padding
            into = backend.stage(batch_shapes(self._items, padding))
            self._launched = backend.launch(stack(self._items, padding, into))
        except Exception as error:  # `report` handles it, after the batch before this one
            self._refused = error.with_traceback(None)  # frames would keep tensors alive
        self._prepared_s = time.perf_counter() - self._started

    @property
    def expected_s(self) -> float:
        """Expected seconds of the device for the launched batch; 0 if unknown."""
        return self._launched.expected_s if self._launched is not None else 0.0

    def is_done(self) -> bool:
        """Whether `report` would not have to wait for the device."""
        return self._launched is None or self._launched.is_done

    def report(self, free_since: float = 0.0) -> Report:
        """Get the outcomes; `free_since` is when the device finished the previous batch."""
        started = max(self._started, free_since)
        fault: ReplicaError | None = None
        try:
            error = self._attempt(0, len(self._items))
            if error is not None:
                self._isolate(0, len(self._items), error)
            if self._unsure:
                self._probe()
        except ReplicaError as broken:
            fault = broken
            for index in self._unsure:  # the replica may have been broken: let another one try
                self._outcomes[index] = None
        took_s = time.perf_counter() - started
        return Report(
            self._outcomes,
            fault,
            self._errors,
            took_s,
            self._forwards,
            self._least_too_large() if self._did_not_fit else 0,
            self._prepared_s,
            self._device,
        )

    def _least_too_large(self) -> int:
        """The smallest number of items that did not fit together, although each fits alone."""
        alone = {start for start, stop in self._did_not_fit if stop - start == 1}
        sizes = [
            stop - start
            for start, stop in self._did_not_fit
            if stop - start > 1 and not alone.intersection(range(start, stop))
        ]
        return min(sizes, default=0)

    def _attempt(self, start: int, stop: int) -> ModelError | None:
        """Run one forward over a span: record its outcomes, or return the model's error."""
        self._forwards += 1
        self._beat()
        try:
            self._outcomes[start:stop] = self._forward(start, stop)
        except ReplicaError:
            raise
        except Exception as error:  # a backend's unexpected error must not end the thread
            if stop - start == 1:
                self._unsure.append(start)
            if isinstance(error, OutOfMemory):
                self._did_not_fit.append((start, stop))
            if isinstance(error, ModelError):
                return error
            return ModelError(f"{type(error).__name__}: {error}")
        self._unsure.clear()
        return None

    def _forward(self, start: int, stop: int) -> list[Outcome]:
        outputs = self._outputs(start, stop)
        _check(outputs, self._contract.outputs, stop - start)
        finish, padding = self._contract.finish, self._contract.padding
        if padding is None or not padding.trims:
            return _rows(outputs, stop - start, finish)
        rows: list[Outcome] = []
        for row, item in enumerate(self._items[start:stop]):
            whole = {name: array[row, ...] for name, array in outputs.items()}
            alone = padding.trim(whole, item.length)
            rows += _rows({name: array[None] for name, array in alone.items()}, 1, finish)
        return rows

    def _outputs(self, start: int, stop: int) -> Arrays:
        """Outputs of the launched batch, the first time; else those of a new run."""
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused
        launched, self._launched = self._launched, None
        if launched is None:
            return self._backend.run(stack(self._items[start:stop], self._contract.padding))
        outputs = launched.outputs()
        self._device = launched.times()
        return outputs

    def _isolate(self, start: int, stop: int, error: ModelError) -> None:
        """Split a span that failed as a whole until each bad item is alone."""
        if stop - start == 1:
            self._errors.append(error)
            self._outcomes[start] = BackendFailed(
                "the model failed on this item", reason=in_short(error)
            )
            return
        middle = (start + stop) // 2
        left, right = self._attempt(start, middle), self._attempt(middle, stop)
        if left is not None and right is not None:
            self._suspect_replica()
        if left is not None:
            self._isolate(start, middle, left)
        if right is not None:
            self._isolate(middle, stop, right)

    def _suspect_replica(self) -> None:
        """Probe the replica once, because both halves failed: splitting cannot fix a replica."""
        if not self._probed:
            self._probed = True
            self._probe()

    def _probe(self) -> None:
        """Check with a golden example whether the replica works."""
        self._beat()
        try:
            self._contract.probe(self._backend)
        except ReplicaError:
            raise
        except Exception as error:
            raise ReplicaError(f"a golden example also fails: {error}") from error
        self._unsure.clear()


def batch_shapes(items: Sequence[Item], padding: Padding | None) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the batch that `stack` returns."""
    if padding is not None:
        return padding.batch_shapes([item.arrays for item in items])
    return {name: (len(items), *array.shape) for name, array in items[0].arrays.items()}


def stack(
    items: Sequence[Item], padding: Padding | None = None, into: Arrays | None = None
) -> Arrays:
    """Items of one signature -> input name -> array with a batch axis.

    Args:
        items: at least one.
        padding: pads items that are shorter than others; None if all have one shape.
        into: C-contiguous arrays of the right shapes and dtypes for the result; None for new ones.
    """
    if padding is not None:
        return padding.stack([item.arrays for item in items], into)
    stacked = {}
    for name, first in items[0].arrays.items():
        arrays = [item.arrays[name] for item in items]
        out = into[name] if into is not None else None
        if first.ndim:  # half the time of np.stack, which first creates a view of each array
            rows = (len(items) * first.shape[0], *first.shape[1:])
            made = np.concatenate(arrays, out=None if out is None else out.reshape(rows))
            stacked[name] = made.reshape(len(items), *first.shape) if out is None else out
        else:
            stacked[name] = np.stack(arrays, out=out)
    return stacked


def _check(outputs: Arrays, names: Sequence[str], wanted: int) -> None:
    if set(outputs) != set(names):
        raise ModelError(f"outputs are {sorted(outputs)}, but the manifest has {sorted(names)}")
    for name, array in outputs.items():
        got = array.shape[0] if array.ndim else 0
        if got != wanted:
            raise ModelError(f"output {name!r} has {got} rows for {wanted} items")


def _rows(outputs: Arrays, count: int, finish: Finish) -> list[Outcome]:
    finite: Array | None = None  # whether each row is finite; None if all are
    for array in outputs.values():
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            if finite is None:
                finite = np.ones(count, dtype=bool)
            finite &= np.isfinite(array.reshape(count, -1)).all(axis=1)
    with np.errstate(invalid="ignore", over="ignore"):  # rows that are not finite become errors
        finished = {name: _copies(array, count) for name, array in finish(outputs).items()}
    return [
        {name: rows[row] for name, rows in finished.items()}
        if finite is None or finite[row]
        else NonFiniteOutput("the model returned NaN or infinity for this item")
        for row in range(count)
    ]


def _copies(array: Array, count: int) -> list[Array]:
    """The rows of an output, as copies: the backend's next run may overwrite its array."""
    if array.nbytes > count * SHARED_ROW_BYTES:
        return [frozen_copy(array[row, ...]) for row in range(count)]
    shared = frozen_copy(array)
    return [shared[row, ...] for row in range(count)]
