"""What a device that works by itself can be told: copy, compute, copy back, each after the other.

`app.backends.cuda` has those of CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import torch

GROWTH = 1.5  # of memory for shapes that are not fixed, where more is needed

# Enqueues operations; called at once or later.
Work: TypeAlias = Callable[[], None]


class CaptureFailed(Exception):
    """A forward cannot be captured as a graph; it can be launched step by step."""


class Span(Protocol):
    """Something that a device does, from its beginning to its end."""

    def wait(self) -> None:
        """Until it is done; not for anything behind it.

        Raises:
            RuntimeError: what went wrong on the device.
        """

    @property
    def is_done(self) -> bool:
        """Whether it is; asked now and then by who does not want to wait.

        Raises:
            RuntimeError: what went wrong on the device.
        """

    @property
    def seconds(self) -> float:
        """What it took by the device's clock; it is done."""


class Streams(Protocol):
    """Three queues of a device; what is in one is done in its order, the three beside each other.

    All but `host_bytes` and `device_bytes` may call what they are given later, but no later than
    someone waits for what is returned.
    """

    def host_bytes(self, count: int) -> torch.Tensor:
        """So much host memory that the device can copy from and to by itself: uint8 [count]."""

    def device_bytes(self, count: int) -> torch.Tensor:
        """So much memory of the device: uint8 [count]."""

    def copy_in(self, work: Work) -> Span:
        """Copies from host memory."""

    def compute(self, work: Work, after: Span) -> Span:
        """Whatever computes, once `after` is done."""

    def copy_out(self, work: Work, after: Span) -> Span:
        """Copies to host memory, once `after` is done."""

    def capture(
        self, forward: Callable[[], Sequence[torch.Tensor]]
    ) -> tuple[Sequence[torch.Tensor], Work]:
        """A forward as a graph, which is launched as one; it was run before.

        Returns:
            what the forward gives, and what computes it anew into these very tensors.

        Raises:
            CaptureFailed: if this forward is none that can be captured.
            torch.OutOfMemoryError: if there is no memory for it.
        """

    def finish(self) -> None:
        """Wait for all of the three, and for nobody else's."""


class Buffer:
    """Memory that is made once, and again where more is needed.

    Args:
        make: makes so many bytes.
    """

    def __init__(self, make: Callable[[int], torch.Tensor]) -> None:
        self._make = make
        self._bytes: torch.Tensor | None = None

    def view(self, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """Its beginning, as a tensor; larger ones that follow may get other memory."""
        count = math.prod(shape) * dtype.itemsize
        has = 0 if self._bytes is None else len(self._bytes)
        if self._bytes is None or has < count:
            self._bytes = None  # first: there may be no memory for both
            self._bytes = self._make(max(count, int(GROWTH * has)))
        return self._bytes[:count].view(dtype).view(tuple(shape))
