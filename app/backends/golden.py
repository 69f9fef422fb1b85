"""Golden examples: replayed on every replica before it serves, and to probe a suspect one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.backends.base import Backend
from app.errors import ArtifactInvalid
from app.types import Array, Arrays
from models.manifest import Manifest
from models.tensors import Tolerance


class Golden:
    """The golden examples of one model, decoded, against one variant's tolerance.

    Args:
        manifest: where the examples stand.
        tolerance: how far the variant may be from them.
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
        shapes = {_shapes(inputs): index for index, (inputs, _) in enumerate(self._examples)}
        self._one_per_shape = tuple(shapes.values())

    def batches(self, sizes: Sequence[int]) -> list[Arrays]:
        """One batch per size and shape of example, to warm a backend with."""
        return [
            {name: np.stack([array] * size) for name, array in inputs.items()}
            for inputs, _ in (self._examples[index] for index in self._one_per_shape)
            for size in sizes
        ]

    def probe(self, backend: Backend) -> None:
        """Replay the first example alone.

        Raises:
            ArtifactInvalid: if the answer is wrong.
            BackendError: if there is none.
        """
        self._check(backend, 0, size=1)

    def replay(self, backend: Backend, sizes: Sequence[int]) -> None:
        """Replay every example alone, then one of each shape in batches of every size.

        Raises:
            ArtifactInvalid: if an answer is wrong, naming example, output and difference.
            BackendError: if there is none.
        """
        for index in range(len(self._examples)):
            self._check(backend, index, size=1)
        for index in self._one_per_shape:
            for size in sizes:
                self._check(backend, index, size)

    def _check(self, backend: Backend, index: int, size: int) -> None:
        inputs, expected = self._examples[index]
        batch = {name: np.stack([array] * size) for name, array in inputs.items()}
        outputs = backend.run(batch)
        for name, want in expected.items():
            for row in _rows(outputs, name, size):
                excess = self._tolerance.excess(want, row)
                if excess is not None:
                    raise ArtifactInvalid(
                        f"{self._model}: golden example {index} in a batch of {size}: "
                        f"output {name!r} {excess}"
                    )


def _shapes(arrays: Arrays) -> tuple[tuple[int, ...], ...]:
    return tuple(array.shape for array in arrays.values())


def _rows(outputs: Arrays, name: str, size: int) -> Array:
    if name not in outputs:
        raise ArtifactInvalid(f"the model gave outputs {sorted(outputs)}, not {name!r}")
    rows = outputs[name]
    if rows.ndim == 0 or rows.shape[0] != size:
        raise ArtifactInvalid(f"output {name!r} has shape {list(rows.shape)} for {size} items")
    return rows
