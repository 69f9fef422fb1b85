"""Scores a block of rows on one verified backend. The result depends only on the rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import numpy as np
import structlog

from app.backends.base import Backend, LaunchingBackend
from app.bulk.blocks import Block
from app.bulk.duplicates import distinct
from app.bulk.errors import BulkError
from app.bulk.numbers import writable
from app.engine.batch_runner import Contract, run_batch
from app.errors import BackendFailed, ItemFailed, ModelError, ReplicaError
from app.types import Array, Arrays, Item, Outcome
from models.manifest import Manifest
from models.timing import nothing

LOG = structlog.get_logger(__name__)
AHEAD = 2  # batches launched at once on an asynchronous device


@dataclass(slots=True)
class ScoredBlock:
    """The result of a block.

    Attributes:
        place: for each good row, the index of the computed row.
        outputs: output name -> finished array [computed, ...]; None if `outcomes` has them.
        outcomes: one outcome for each computed row.
        failures: index -> the reason why the model failed.
        computed_count: number of computed rows; each other good row is equal to one of them.
    """

    block: Block
    place: Array
    outputs: Arrays | None = None
    outcomes: Sequence[Outcome] | None = None
    failures: dict[int, str] = field(default_factory=dict)
    computed_count: int = 0


class Scorer:
    """Scores blocks, in one thread.

    Args:
        make: creates a verified backend; called again after a fault.
        batch: items of a forward.
        beat: called before each forward; may raise to stop.
    """

    def __init__(
        self,
        manifest: Manifest,
        make: Callable[[], Backend],
        contract: Contract,
        batch: int,
        beat: Callable[[], None] = nothing,
    ) -> None:
        self._outputs = manifest.outputs
        self._make = make
        self._contract = contract
        self._batch = batch
        self._beat = beat
        self._backend = make()
        self._stacks = contract.padding is None and all(s.is_fixed for s in manifest.outputs)

    def score(self, block: Block) -> ScoredBlock:
        """Compute the good rows of a block.

        Raises:
            BulkError: if the backend breaks twice.
        """
        rows, place = distinct(block)
        scored_block = ScoredBlock(block, place, computed_count=len(rows))
        try:
            self._compute(scored_block, rows)
        except ReplicaError as fault:
            LOG.warning("replica_broke", problem=str(fault), instead="it is recreated")
            self._backend.close()
            try:
                self._backend = self._make()
                self._compute(scored_block, rows)
            except ReplicaError as again:
                raise BulkError(f"the device does not work: {again}") from again
        return scored_block

    def close(self) -> None:
        """Release the backend."""
        self._backend.close()

    def _compute(self, scored_block: ScoredBlock, rows: Array) -> None:
        block = scored_block.block
        scored_block.failures.clear()
        if block.arrays is not None and self._stacks:
            arrays = block.arrays
            if len(rows) < len(block.good):
                arrays = {name: array[rows] for name, array in arrays.items()}
            scored_block.outputs = self._run_stacked(arrays, len(rows), scored_block.failures)
        else:
            items = block.items or _items(block.arrays)
            scored_block.outcomes = self._one_by_one([items[row] for row in rows.tolist()])
            for at, outcome in enumerate(scored_block.outcomes):
                if isinstance(outcome, ItemFailed):
                    scored_block.failures[at] = _reason(outcome)

    def _run_stacked(self, arrays: Arrays, count: int, failures: dict[int, str]) -> Arrays:
        """Whole batches as slices of the arrays; the runner repeats batches that fail."""
        raw = {spec.name: np.zeros((count, *spec.item_shape), spec.dtype) for spec in self._outputs}
        again = []  # first rows of batches that failed
        for start, outputs_of_batch in self._forwards(arrays, count):
            if outputs_of_batch is None:
                again.append(start)
                continue
            for name, array in raw.items():
                array[start : start + self._batch] = outputs_of_batch[name]
        again += self._not_finite(raw)
        with np.errstate(invalid="ignore", over="ignore"):  # rows that are not finite are replaced
            outputs = {name: writable(array) for name, array in self._contract.finish(raw).items()}
        for start in dict.fromkeys(again):
            batch = {name: array[start : start + self._batch] for name, array in arrays.items()}
            for row, outcome in enumerate(self._run_items(_items(batch)), start):
                if isinstance(outcome, ItemFailed):
                    failures[row] = _reason(outcome)
                else:
                    for name, array in outputs.items():
                        array[row] = outcome[name]
        return outputs

    def _not_finite(self, raw: Arrays) -> list[int]:
        """The first rows of the batches in which the model returned NaN or infinity."""
        rows: set[int] = set()
        for array in raw.values():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                finite = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
                rows.update(np.flatnonzero(~finite).tolist())
        return sorted({row // self._batch * self._batch for row in rows})

    def _forwards(self, arrays: Arrays, count: int) -> Iterator[tuple[int, Arrays | None]]:
        """The first row and outputs of each batch; None if it failed."""
        running: deque[tuple[int, Callable[[], Arrays]]] = deque()
        launches = self._backend.serving().launches
        for start in range(0, count, self._batch):
            self._beat()
            batch = {name: array[start : start + self._batch] for name, array in arrays.items()}
            running.append(
                (start, self._begin(batch) if launches else partial(self._run_plain, batch))
            )
            if not launches or len(running) == AHEAD:
                yield self._end(*running.popleft(), count)
        while running:
            yield self._end(*running.popleft(), count)

    def _run_plain(self, batch: Arrays) -> Arrays:
        return self._backend.run(batch)

    def _begin(self, batch: Arrays) -> Callable[[], Arrays]:
        """Launch a batch from pinned memory, while the device runs another one."""
        backend = cast(LaunchingBackend, self._backend)
        try:
            buffers = backend.stage({name: array.shape for name, array in batch.items()})
            for name, array in batch.items():
                np.copyto(buffers[name], array)
            return backend.launch(buffers).outputs
        except ModelError as error:
            problem = error
        return partial(_raise, problem)

    def _end(
        self, start: int, outputs_of: Callable[[], Arrays], count: int
    ) -> tuple[int, Arrays | None]:
        rows = min(self._batch, count - start)
        try:
            outputs = outputs_of()
        except ReplicaError:
            raise
        except Exception as error:  # as in `run_batch`, which later finds the faulty item
            LOG.debug("batch_failed", problem=str(error))
            return start, None
        for spec in self._outputs:
            array = outputs.get(spec.name)
            if array is None or array.shape != (rows, *spec.item_shape):
                return start, None
        return start, outputs

    def _one_by_one(self, items: Sequence[Item]) -> list[Outcome]:
        """Items of different shapes: batches of items with one signature, ordered by length."""
        groups: dict[object, list[int]] = {}
        for at, item in enumerate(items):
            groups.setdefault(item.signature, []).append(at)
        outcomes: dict[int, Outcome] = {}
        for group in groups.values():
            group.sort(key=lambda at: -items[at].length)  # longest first: it needs most memory
            for start in range(0, len(group), self._batch):
                places = group[start : start + self._batch]
                batch_outcomes = self._run_items([items[at] for at in places])
                outcomes.update(zip(places, batch_outcomes, strict=True))
        return [outcomes[at] for at in range(len(items))]

    def _run_items(self, items: Sequence[Item]) -> list[Outcome]:
        report = run_batch(self._backend, items, self._contract, self._beat)
        if report.fault is not None:
            raise report.fault
        return [
            BackendFailed("bug: an item has no outcome") if each is None else each
            for each in report.outcomes
        ]


def _items(arrays: Arrays | None) -> list[Item]:
    if not arrays:
        return []
    count = len(next(iter(arrays.values())))
    return [Item({name: array[row] for name, array in arrays.items()}) for row in range(count)]


def _reason(failure: ItemFailed) -> str:
    more = getattr(failure, "reason", "")
    return f"{failure}: {more}" if more else str(failure)


def _raise(error: Exception) -> Arrays:
    raise error
