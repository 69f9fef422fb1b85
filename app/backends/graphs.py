"""Chooses the batches that run as a captured graph: one launch instead of one per operation.

A graph has one batch size. It is used if it was measured to be faster.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import torch

from app.backends.streams import DeviceWork


class Graph(NamedTuple):
    """A captured forward for a fixed number of rows: its inputs, its outputs, and its launch."""

    rows: int
    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    replay: DeviceWork

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run a forward of up to `self.rows` rows.

        Missing rows repeat the last one, which is in this batch and is valid for the model.

        Args:
            inputs: inputs on the device.

        Returns:
            new tensors, because the next forward may start before they are copied.
        """
        rows = len(inputs[0])
        for static, tensor in zip(self.inputs, inputs, strict=True):
            static[:rows].copy_(tensor, non_blocking=True)
            if rows < self.rows:
                rest = static[rows:]
                rest.copy_(tensor[-1:].expand_as(rest), non_blocking=True)
        self.replay()
        return [tensor[:rows].clone() for tensor in self.outputs]


class _SizeTimes(NamedTuple):
    plain_s: float
    graph_s: float
    graph: Graph | None


class Graphs:
    """The graphs of one form, with times with a graph and without."""

    def __init__(self) -> None:
        self._rows: list[int] = []  # ascending
        self._sizes: list[_SizeTimes] = []

    def knows(self, rows: int) -> bool:
        """Whether this batch size was measured."""
        at = bisect_left(self._rows, rows)
        return at < len(self._rows) and self._rows[at] == rows

    def record(
        self, rows: int, plain_s: float, graph: Graph | None = None, graph_s: float = math.inf
    ) -> None:
        """Record a batch size's seconds: without its graph, and with it."""
        at = bisect_left(self._rows, rows)
        self._rows.insert(at, rows)
        self._sizes.insert(at, _SizeTimes(plain_s, graph_s, graph))

    def best(self, rows: int) -> Graph | None:
        """The graph for a batch of this size; None to run without a graph.

        It is the graph of this size, if that is faster. Otherwise it is the graph of the next
        larger size, padded, if that is faster than the next smaller size without a graph: then it
        is also faster than this size without one.
        """
        at = bisect_left(self._rows, rows)
        if at == len(self._rows):
            return None
        plain_s = self._sizes[at].plain_s
        if self._rows[at] != rows:
            plain_s = self._sizes[at - 1].plain_s if at > 0 else 0.0
        return self._sizes[at].graph if self._sizes[at].graph_s < plain_s else None

    def clear(self) -> None:
        """Release the graphs' memory."""
        self._rows.clear()
        self._sizes.clear()
