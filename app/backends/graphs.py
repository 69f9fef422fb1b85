"""Which batches run as a captured graph: one launch of the whole forward instead of one per step.

A graph is for one size. It is used where it was measured to be quicker.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import torch

from app.backends.streams import Work


class Graph(NamedTuple):
    """A captured forward of so many rows; what it reads, what it writes, and how it is launched."""

    rows: int
    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    replay: Work

    def run(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """A forward of as many rows, or of fewer.

        The rest is filled with the last one: nothing that a model has not seen before, and nothing
        of another batch.

        Args:
            given: the inputs, on the device.

        Returns:
            new tensors: the next forward may begin before these have left the device.
        """
        rows = len(given[0])
        for static, tensor in zip(self.inputs, given, strict=True):
            static[:rows].copy_(tensor, non_blocking=True)
            if rows < self.rows:
                rest = static[rows:]
                rest.copy_(tensor[-1:].expand_as(rest), non_blocking=True)
        self.replay()
        return [tensor[:rows].clone() for tensor in self.outputs]


class _Size(NamedTuple):
    plain_s: float
    graph_s: float
    graph: Graph | None


class Graphs:
    """The graphs of one form, and what they take beside the same forwards launched step by step."""

    def __init__(self) -> None:
        self._rows: list[int] = []  # ascending
        self._sizes: list[_Size] = []

    def knows(self, rows: int) -> bool:
        """Whether batches of so many rows were measured."""
        at = bisect_left(self._rows, rows)
        return at < len(self._rows) and self._rows[at] == rows

    def measured(
        self, rows: int, plain_s: float, graph: Graph | None = None, graph_s: float = math.inf
    ) -> None:
        """What a batch of so many rows takes, in seconds: without its graph, and with it."""
        at = bisect_left(self._rows, rows)
        self._rows.insert(at, rows)
        self._sizes.insert(at, _Size(plain_s, graph_s, graph))

    def best(self, rows: int) -> Graph | None:
        """The graph that a batch of so many rows runs in; None: it is launched step by step.

        That of its size, where it is quicker. Or that of the next larger size, filled up, where it
        is quicker than the next smaller size without: then it is quicker than this size without.
        """
        at = bisect_left(self._rows, rows)
        if at == len(self._rows):
            return None
        plain_s = self._sizes[at].plain_s
        if self._rows[at] != rows:
            plain_s = self._sizes[at - 1].plain_s if at > 0 else 0.0
        return self._sizes[at].graph if self._sizes[at].graph_s < plain_s else None

    def clear(self) -> None:
        """Give their memory back."""
        self._rows.clear()
        self._sizes.clear()
