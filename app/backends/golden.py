"""Golden examples, replayed on every replica before it serves, and to probe a suspect replica."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

from app.backends.base import Backend, Between
from app.backends.growth import GrowthByLength
from app.errors import ArtifactInvalid
from app.types import Array, Arrays, BatchTimes
from models.manifest import Manifest
from models.padding import padding_of
from models.tensors import Tolerance, stack
from models.timing import nothing

TRIES = 3  # per size that runs within QUICK_S: other work on the machine may delay one
QUICK_S = 0.02


class Golden:
    """The decoded golden examples of one model, with one variant's tolerance.

    Args:
        tolerance: how far the variant may differ from them.
    """

    def __init__(self, manifest: Manifest, tolerance: Tolerance) -> None:
        self._model = f"{manifest.model}/{manifest.version}"
        self._tolerance = tolerance
        self._examples = [
            (
                {spec.name: example.inputs[spec.name].array() for spec in manifest.inputs},
                {spec.name: example.outputs[spec.name].array() for spec in manifest.outputs},
            )
            for example in manifest.golden
        ]
        self._padding = padding_of(manifest.inputs, manifest.outputs)
        by_shape: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for index, (inputs, _) in enumerate(self._examples):
            by_shape.setdefault(_shapes(inputs), []).append(index)
        self._groups = tuple(by_shape.values())

    def length(self, inputs: Arrays, *, is_batch: bool = True) -> int:
        """The length of the items of a batch, or of one item; 0 if the model pads nothing."""
        if self._padding is None:
            return 0
        one = {name: array[0] for name, array in inputs.items()} if is_batch else inputs
        return self._padding.size(one)

    def batches(self, sizes: Sequence[int]) -> Iterator[Arrays]:
        """One batch per size and example shape, to warm up a backend; created on demand."""
        for size in sizes:
            for group in self._groups:
                yield self._batch(self._rows(group, size))

    def probe(self, backend: Backend) -> None:
        """Replay the first example alone.

        Raises:
            ArtifactInvalid: if the output is wrong.
            BackendError: if there is no output.
        """
        self._check(backend, [0])

    def replay(
        self,
        backend: Backend,
        sizes: Sequence[int],
        between: Between = nothing,
        known_times: BatchTimes | None = None,
    ) -> dict[int, dict[int, float]]:
        """Replay every example alone, then examples of one shape in batches of every size.

        Finally, if the model pads, replay all of them together.

        Args:
            backend: a loaded backend.
            sizes: batch sizes.
            between: called between forwards.
            known_times: what a warm-up has replayed and timed; only quick runs of it are repeated.

        Returns:
            length -> batch size -> seconds of its run, see `replay_at`. Size 1 is always included;
            each length has no size larger than `Growth` finds worth running.

        Raises:
            ArtifactInvalid: if an output is wrong, with example, output and difference.
            BackendError: if there is no output.
        """
        known_times = known_times or {}
        quickest_s = {length: dict(times) for length, times in known_times.items()}
        growing = GrowthByLength()
        for size in dict.fromkeys((1, *sizes)):
            enough = {
                length
                for length, times in known_times.items()
                if size not in times or times[size] > QUICK_S
            }
            for _ in range(TRIES):
                taken_s = self.replay_at(backend, size, between, enough | growing.full_lengths)
                for length, seconds in taken_s.items():
                    times = quickest_s.setdefault(length, {})
                    times[size] = min(seconds, times.get(size, seconds))
                if max(taken_s.values(), default=0.0) > QUICK_S:
                    break
            if self._padding is not None:  # otherwise warm-up has already chosen the sizes
                took_s = {each: s[size] for each, s in quickest_s.items() if size in s}
                growing.record(size, took_s)
        if self._padding is not None and len(self._groups) > 1:
            between()
            self._check(backend, range(len(self._examples)))
        return quickest_s

    def replay_forms(self, backend: Backend, between: Between = nothing) -> None:
        """Replay every example once in each form that the backend runs; see `replay`."""
        smallest = 1
        for step in backend.serving().steps:
            self.replay_at(backend, smallest, between)
            smallest = (step.up_to or 0) + 1

    def replay_at(
        self,
        backend: Backend,
        size: int,
        between: Between = nothing,
        skip: Collection[int] = (),
    ) -> dict[int, float]:
        """Replay the examples in batches of one size: each alone, or different ones together.

        No item may influence another's answer. For arguments and errors see `replay`.

        Args:
            backend: see `replay`, like `size` and `between`.
            size: size of the batches.
            between: called between forwards.
            skip: lengths that are not run.

        Returns:
            length -> seconds of a run; for several shapes of one length, those of the slowest.
        """
        slowest_s: dict[int, float] = {}
        for group in self._groups:
            length = self.length(self._examples[group[0]][0], is_batch=False)
            if length in skip:
                continue
            batches = [[each] for each in group] if size == 1 else [self._rows(group, size)]
            taken_s = []
            for rows in batches:
                between()
                taken_s.append(self._check(backend, rows))
            slowest_s[length] = max(slowest_s.get(length, 0.0), min(taken_s))
        return slowest_s

    @staticmethod
    def _rows(group: Sequence[int], size: int) -> list[int]:
        """The examples that make up a batch of `size` items."""
        return [group[row % len(group)] for row in range(size)]

    def _batch(self, indices: Sequence[int]) -> Arrays:
        items = [self._examples[index][0] for index in indices]
        return stack(items) if self._padding is None else self._padding.stack(items)

    def _check(self, backend: Backend, indices: Sequence[int]) -> float:
        """Run these examples as one batch; returns the run's seconds."""
        size = len(indices)
        batch = self._batch(indices)
        began = time.perf_counter()
        outputs = backend.run(batch)
        took_s = time.perf_counter() - began
        rows = {name: _rows(outputs, name, size) for name in self._examples[indices[0]][1]}
        for at, index in enumerate(indices):
            inputs, expected = self._examples[index]
            actual: Arrays = {name: array[at, ...] for name, array in rows.items()}
            if self._padding is not None:
                actual = self._padding.trim(actual, self._padding.size(inputs))
            for name, output in actual.items():
                excess = self._tolerance.excess(expected[name], output)
                if excess is not None:
                    raise ArtifactInvalid(
                        f"{self._model}: golden example {index} in a batch of {size}: "
                        f"output {name!r} {excess}"
                    )
        return took_s


def _shapes(arrays: Arrays) -> tuple[tuple[int, ...], ...]:
    return tuple(array.shape for array in arrays.values())


def _rows(outputs: Arrays, name: str, size: int) -> Array:
    if name not in outputs:
        raise ArtifactInvalid(f"the model returned outputs {sorted(outputs)}, not {name!r}")
    rows = outputs[name]
    if rows.ndim == 0 or rows.shape[0] != size:
        raise ArtifactInvalid(f"output {name!r} has shape {list(rows.shape)} for {size} items")
    return rows
