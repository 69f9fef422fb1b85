"""The operations of an asynchronous device: copy in, compute, copy out, in order.

`app.backends.cuda` implements them for CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import torch

GROWTH = 1.5  # of a buffer for free shapes when it must grow

# Enqueues operations; called at once or later.
DeviceWork: TypeAlias = Callable[[], None]


class CaptureFailed(Exception):
    """A forward cannot be captured as a graph, only launched step by step."""


class DeviceSpan(Protocol):
    """An operation of a device, from its start to its end."""

    def wait(self) -> None:
        """Wait until it is done, but not for anything after it.

        Raises:
            RuntimeError: if the device reports an error.
        """

    @property
    def is_done(self) -> bool:
        """Whether it is done; polled by callers that do not want to wait.

        Raises:
            RuntimeError: if the device reports an error.
        """

    @property
    def seconds(self) -> float:
        """Its duration by the device's clock; read after it is done."""


class DeviceStreams(Protocol):
    """Three queues of a device; each runs in order, and the three run in parallel.

    All methods except `host_bytes` and `device_bytes` may call their argument later, but not later
    than when the returned span is waited for.
    """

    def host_bytes(self, count: int) -> torch.Tensor:
        """Host memory from and to which the device can copy asynchronously: uint8 [count]."""

    def device_bytes(self, count: int) -> torch.Tensor:
        """Memory of the device: uint8 [count]."""

    def copy_in(self, work: DeviceWork) -> DeviceSpan:
        """Copy from host memory."""

    def compute(self, work: DeviceWork, after: DeviceSpan) -> DeviceSpan:
        """Compute, once `after` is done."""

    def copy_out(self, work: DeviceWork, after: DeviceSpan) -> DeviceSpan:
        """Copy to host memory, once `after` is done."""

    def capture(
        self, forward: Callable[[], Sequence[torch.Tensor]]
    ) -> tuple[Sequence[torch.Tensor], DeviceWork]:
        """Capture a forward, which was run before, as a graph that is launched as one.

        Returns:
            the forward's outputs, and the work that recomputes them in place.

        Raises:
            CaptureFailed: if this forward cannot be captured.
            torch.OutOfMemoryError: if it does not fit into memory.
        """

    def finish(self) -> None:
        """Wait for these three queues only."""


class Buffer:
    """Memory that is allocated once, and reallocated when more is needed.

    Args:
        make: allocates bytes.
    """

    def __init__(self, make: Callable[[int], torch.Tensor]) -> None:
        self._make = make
        self._bytes: torch.Tensor | None = None

    def view(self, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """The start of the buffer as a tensor; a later, larger view may get other memory."""
        count = math.prod(shape) * dtype.itemsize
        has = 0 if self._bytes is None else len(self._bytes)
        if self._bytes is None or has < count:
            self._bytes = None  # freed first: there may be no memory for both
            self._bytes = self._make(max(count, int(GROWTH * has)))
        return self._bytes[:count].view(dtype).view(tuple(shape))
