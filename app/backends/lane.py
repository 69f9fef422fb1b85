"""Passes batches through an asynchronous device: copied in, computed, copied out.

The three steps of different batches overlap: while the device computes one batch, the next is
assembled in host memory and copied in, and the outputs of the previous one are copied out. The
thread only enqueues the steps and waits until a batch is back.

It is tested without such a device, on streams that delay everything as long as they may
(tests.late_streams.py). `app.backends.cuda` has those of CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import torch

from app.backends.base import size_of
from app.backends.faults import faults_of
from app.backends.profiler import batch_range
from app.errors import ReplicaError
from app.types import NO_DEVICE_TIMES, Arrays, DeviceTimes
from models.manifest import Manifest
from models.runtimes.forms import Forward, declared_outputs
from models.tensors import TensorSpec

SLOTS = 2  # batches in flight at once
WEIGHT = 0.2  # of the newest batch in the average
GROWTH = 1.5  # of a buffer for free shapes when it must grow
# Enqueues operations; called at once or later.
DeviceWork: TypeAlias = Callable[[], None]


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


class Slot:
    """The memory of one batch in flight."""

    def __init__(self, inputs: int, outputs: int, streams: DeviceStreams) -> None:
        self.host_in = [Buffer(streams.host_bytes) for _ in range(inputs)]
        self.device_in = [Buffer(streams.device_bytes) for _ in range(inputs)]
        self.host_out = [Buffer(streams.host_bytes) for _ in range(outputs)]


class LaneBatch:
    """A batch in flight: see `app.backends.base.LaunchedBatch`.

    Args:
        slot: its memory while it is in flight.
    """

    def __init__(self, lane: Lane, slot: Slot, rows: int) -> None:
        self._lane = lane
        self._slot: Slot | None = slot
        self._rows = rows
        self._expected_s = lane.expected_s(rows)
        self._times = NO_DEVICE_TIMES
        self._spans: list[DeviceSpan] = []
        self._device_out: Sequence[torch.Tensor] = ()
        self._out: list[torch.Tensor] = []

    def begin(self, slot: Slot, host_in: Sequence[torch.Tensor]) -> None:
        """Enqueue the three steps in order."""
        lane = self._lane
        device_in = [
            buffer.view(each.dtype, each.shape)
            for buffer, each in zip(slot.device_in, host_in, strict=True)
        ]

        def copy_in() -> None:
            for target, source in zip(device_in, host_in, strict=True):
                target.copy_(source, non_blocking=True)

        def compute() -> None:
            with torch.inference_mode():
                self._device_out = lane.forward(device_in)

        def copy_out() -> None:
            with torch.inference_mode():
                for buffer, tensor in zip(slot.host_out, self._device_out, strict=True):
                    target = buffer.view(tensor.dtype, tensor.shape)
                    target.copy_(tensor, non_blocking=True)
                    self._out.append(target)

        streams = lane.streams
        self._spans.append(streams.copy_in(copy_in))
        self._spans.append(streams.compute(compute, self._spans[-1]))
        self._spans.append(streams.copy_out(copy_out, self._spans[-1]))

    @property
    def expected_s(self) -> float:
        return self._expected_s

    @property
    def is_done(self) -> bool:
        try:
            return self._spans[-1].is_done
        except RuntimeError:  # `outputs` will raise it
            return True

    def outputs(self) -> Arrays:
        if self._slot is None:
            raise ReplicaError("bug: the outputs of a batch were requested twice")
        self.end()
        outputs = zip(self._lane.manifest.outputs, self._out, strict=True)
        return {spec.name: tensor.numpy() for spec, tensor in outputs}

    def times(self) -> DeviceTimes:
        return self._times

    def end(self) -> None:
        """Wait for the batch, then release its memory.

        Raises:
            ModelError, ReplicaError: if the batch failed.
        """
        lane = self._lane
        try:
            with faults_of(lane.device):
                self._spans[-1].wait()
                self._times = DeviceTimes(*(span.seconds for span in self._spans))
                lane.took(self._rows, sum(self._times))
        finally:
            self._release()

    def abort(self) -> None:
        """Wait for a partly started batch to end, then release its memory."""
        try:
            with faults_of(self._lane.device):
                self._lane.streams.finish()
        finally:
            self._release()

    def _release(self) -> None:
        self._device_out = ()  # on the device
        if self._slot is not None:
            self._lane.release(self._slot)
        self._slot = None


class Lane:
    """One loaded form on one device; used in its replica's thread.

    Args:
        streams: the device's streams for this thread.
        device: for messages.
    """

    def __init__(
        self, form: Forward, manifest: Manifest, streams: DeviceStreams, device: torch.device
    ) -> None:
        self.manifest = manifest
        self.streams = streams
        self.device = device
        self._form = form
        sides = len(manifest.inputs), len(manifest.outputs)
        self._free = [Slot(*sides, streams) for _ in range(SLOTS)]
        self._stage_arrays: Arrays | None = None
        self._device_s: dict[int, float] = {}  # by batch size bucket

    def forward(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the form on tensors on the device; returns the outputs that the manifest declares."""
        return declared_outputs(self._form(*inputs), self.manifest.outputs)

    def stage(self, shapes: Mapping[str, Sequence[int]]) -> Arrays:
        slot = self._next_slot()
        with faults_of(self.device):
            self._stage_arrays = {
                spec.name: buffer.view(_dtype(spec), shapes[spec.name]).numpy()
                for buffer, spec in zip(slot.host_in, self.manifest.inputs, strict=True)
            }
            return self._stage_arrays

    def launch(self, inputs: Arrays) -> LaneBatch:
        slot = self._next_slot()
        del self._free[-1]
        batch = LaneBatch(self, slot, size_of(inputs))
        try:
            named = batch_range(self.manifest.model, self.manifest.version, size_of(inputs))
            with faults_of(self.device), named:
                host_in = [
                    self._on_host(buffer, inputs, spec.name)
                    for buffer, spec in zip(slot.host_in, self.manifest.inputs, strict=True)
                ]
                self._stage_arrays = None
                batch.begin(slot, host_in)
        except BaseException:
            batch.abort()
            raise
        return batch

    def expected_s(self, rows: int) -> float:
        """Total device seconds expected for a batch of this size; 0 if not yet known."""
        return self._device_s.get(_bucket(rows), 0.0)

    def took(self, rows: int, seconds: float) -> None:
        """Record device seconds: a smaller value counts at once, because the first run is slow."""
        bucket = _bucket(rows)
        known_s = self._device_s.get(bucket, seconds)
        self._device_s[bucket] = min(seconds, known_s + WEIGHT * (seconds - known_s))

    def release(self, slot: Slot) -> None:
        """Take back the memory of a batch that is done or lost."""
        self._free.append(slot)

    def close(self) -> None:
        """Wait for the batches in flight, then release the memory."""
        self.streams.finish()
        self._free.clear()

    def _on_host(self, buffer: Buffer, inputs: Arrays, name: str) -> torch.Tensor:
        """An input in host memory from which the device can copy; it may already be staged."""
        array = inputs[name]
        view = buffer.view(torch.from_numpy(np.empty(0, array.dtype)).dtype, array.shape)
        if self._stage_arrays is None or self._stage_arrays[name] is not array:
            np.copyto(view.numpy(), array)
        return view

    def _next_slot(self) -> Slot:
        if not self._free:
            raise ReplicaError("bug: a third batch is launched while two are in flight")
        return self._free[-1]


def _bucket(rows: int) -> int:
    return (rows - 1).bit_length()


def _dtype(spec: TensorSpec) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype
