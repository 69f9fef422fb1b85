"""Builds batches of golden examples for timing, profiling and comparing forms."""

from __future__ import annotations

from models.manifest import Manifest
from models.tensors import Arrays, stack


def golden_batches(manifest: Manifest, size: int) -> list[Arrays]:
    """Return one batch for each shape of the golden examples, repeated in turn."""
    by_shape: dict[tuple[tuple[int, ...], ...], list[Arrays]] = {}
    for example in manifest.golden:
        item = {spec.name: example.inputs[spec.name].array() for spec in manifest.inputs}
        by_shape.setdefault(tuple(array.shape for array in item.values()), []).append(item)
    return [
        stack([items[index % len(items)] for index in range(size)]) for items in by_shape.values()
    ]
