"""Outputs with counted rows, such as boxes: answers have only the counted rows, best first.

The engine and the cache keep the outputs padded by the model, so that items can share arrays.
"""

from __future__ import annotations

import numpy as np

from app.types import Array, Arrays
from models.manifest import Manifest


class CountedRows:
    """Selects the counted rows of one model's outputs.

    Args:
        manifest: says which outputs have counted rows, and how rows are ranked.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._counts = {spec.name: spec.count for spec in manifest.outputs if spec.count}
        codec = manifest.codec
        self._ranked_by = codec.ranked_by
        self._threshold = codec.threshold
        self._top_k = codec.top_k
        self._classes = codec.classes
        self._labels = codec.labels or ()
        self._ranked = [
            name
            for name, count in self._counts.items()
            if self._ranked_by is not None and count == self._counts[self._ranked_by]
        ]

    def real(self, outputs: Arrays) -> Arrays:
        """The outputs of one item with only the counted rows."""
        if not self._counts:
            return outputs
        cut = {
            name: outputs[name][: max(0, int(outputs[count]))]
            for name, count in self._counts.items()
        }
        return {**outputs, **cut}

    def chosen(self, outputs: Arrays, top_k: int | None) -> Arrays:
        """The outputs of one item with only the rows that `ranked` returns, and their number.

        What `real` and `ranked` return for them is the same as for all rows.
        """
        if not self._counts:
            return outputs
        rows, _ = self.ranked(self.real(outputs), top_k)
        counts = {
            count: np.asarray(len(rows[name]), outputs[count].dtype)
            for name, count in self._counts.items()
        }
        return {**rows, **counts}

    def ranked(self, real: Arrays, top_k: int | None) -> tuple[Arrays, list[str] | None]:
        """The rows in descending order of their scores, and their labels if they have classes.

        Args:
            real: the outputs of one item, from `real`.
            top_k: maximum number of rows; None for the manifest's number.
        """
        if self._ranked_by is not None:
            scores = real[self._ranked_by]
            kept = np.argsort(-scores, kind="stable")[: top_k or self._top_k]
            if self._threshold is not None:
                kept = kept[scores[kept] >= self._threshold]
            real = {**real, **{name: real[name][kept] for name in self._ranked}}
        labels = None if self._classes is None else [*map(self._label, real[self._classes])]
        return real, labels

    def _label(self, index: Array) -> str:
        """The label of a class, or its number if it has no label."""
        at = int(index)
        return self._labels[at] if 0 <= at < len(self._labels) else str(at)
