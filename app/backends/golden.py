"""Golden examples: replayed on every replica before it serves, and to probe a suspect one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from app.backends.base import Backend, Between
from app.errors import ArtifactInvalid
from app.types import Array, Arrays
from models.manifest import Manifest
from models.tensors import Tolerance, stack
from models.timing import nothing

TRIES = 3  # of each size that runs in QUICK_S: other work on the machine may hold one up
QUICK_S = 0.02


class Golden:
    """The decoded golden examples of one model, with one variant's tolerance.

    Args:
        manifest: has the examples.
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
        by_shape: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for index, (inputs, _) in enumerate(self._examples):
            by_shape.setdefault(_shapes(inputs), []).append(index)
        self._groups = tuple(by_shape.values())

    def batches(self, sizes: Sequence[int]) -> Iterator[Arrays]:
        """One batch per size and shape of example, to warm a backend with; made on demand."""
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
        self, backend: Backend, sizes: Sequence[int], between: Between = nothing
    ) -> dict[int, float]:
        """Replay every example alone, then those of one shape together in batches of every size.

        Args:
            backend: a loaded one.
            sizes: batch sizes.
            between: called between forwards.

        Returns:
            batch size -> seconds of its run, see `replay_at`; size 1 is always included.

        Raises:
            ArtifactInvalid: if an output is wrong, naming example, output and difference.
            BackendError: if there is no output.
        """
        quickest_s = {}
        for size in dict.fromkeys((1, *sizes)):
            taken_s = [self.replay_at(backend, size, between)]
            while len(taken_s) < TRIES and taken_s[-1] <= QUICK_S:
                taken_s.append(self.replay_at(backend, size, between))
            quickest_s[size] = min(taken_s)
        return quickest_s

    def replay_at(self, backend: Backend, size: int, between: Between = nothing) -> float:
        """Replay the examples in batches of one size: each alone, or different ones together.

        No item may influence another's answer. For arguments and errors see `replay`.

        Returns:
            seconds of a run; where shapes differ, those of the slowest.
        """
        slowest_s = 0.0
        for group in self._groups:
            batches = [[each] for each in group] if size == 1 else [self._rows(group, size)]
            taken_s = []
            for rows in batches:
                between()
                taken_s.append(self._check(backend, rows))
            slowest_s = max(slowest_s, min(taken_s))
        return slowest_s

    @staticmethod
    def _rows(group: Sequence[int], size: int) -> list[int]:
        """The examples that make up a batch of `size` items."""
        return [group[row % len(group)] for row in range(size)]

    def _batch(self, indices: Sequence[int]) -> Arrays:
        return stack([self._examples[index][0] for index in indices])

    def _check(self, backend: Backend, indices: Sequence[int]) -> float:
        """Run these examples, which have one shape, as one batch; returns the run's seconds."""
        size = len(indices)
        batch = self._batch(indices)
        began = time.perf_counter()
        outputs = backend.run(batch)
        took_s = time.perf_counter() - began
        for name in self._examples[indices[0]][1]:
            rows = _rows(outputs, name, size)
            for index, row in zip(indices, rows, strict=True):
                excess = self._tolerance.excess(self._examples[index][1][name], row)
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
