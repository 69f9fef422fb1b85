"""Passes batches through an asynchronous device: copied in, computed, copied out.

The three steps of different batches overlap: while the device computes one batch, the next is
assembled in host memory and copied in, and the outputs of the previous one are copied out. The
thread only enqueues the steps and waits until a batch is back.

It is tested without such a device, on streams that delay everything as long as they may
(tests.late_streams.py).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import structlog
import torch

from app.backends.base import Between, size_of
from app.backends.faults import faults_of
from app.backends.graphs import Graph, Graphs
from app.backends.profiler import batch_range
from app.backends.streams import Buffer, CaptureFailed, DeviceSpan, DeviceStreams
from app.errors import OutOfMemory, ReplicaError
from app.types import NO_DEVICE_TIMES, Arrays, DeviceTimes
from models.forms import Forward, declared_outputs
from models.manifest import Manifest
from models.tensors import TensorSpec, Tolerance
from models.timing import nothing, time_interleaved

LOG = structlog.get_logger(__name__)
SLOTS = 2  # batches in flight at once
WEIGHT = 0.2  # of the newest batch in the average
LONG_S = 0.001  # on the device: waiting for longer batches does not spin
POLLS = 50  # of such a batch: its end is detected at most a fiftieth late
TIMED_ROUNDS = 9
TIMING_BUDGET_S = 0.25  # for each batch size


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
        # Waiting for a device spins, so it is used only for a short batch.
        long = self._expected_s >= LONG_S
        self._pause_s = min(LONG_S, self._expected_s / POLLS) if long else 0.0
        self._times = NO_DEVICE_TIMES
        self._spans: list[DeviceSpan] = []
        self._device_out: Sequence[torch.Tensor] = ()
        self._out: list[torch.Tensor] = []

    def begin(self, slot: Slot, host_in: Sequence[torch.Tensor], graph: Graph | None) -> None:
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
                self._device_out = (
                    graph.run(device_in) if graph is not None else lane.forward(device_in)
                )

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
                while self._pause_s and not self._spans[-1].is_done:
                    time.sleep(self._pause_s)
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
        captures: whether to try to capture graphs.
    """

    def __init__(
        self,
        form: Forward,
        manifest: Manifest,
        streams: DeviceStreams,
        device: torch.device,
        *,
        captures: bool = True,
    ) -> None:
        self.manifest = manifest
        self.streams = streams
        self.device = device
        self._form = form
        sides = len(manifest.inputs), len(manifest.outputs)
        self._free = [Slot(*sides, streams) for _ in range(SLOTS)]
        self._stage_arrays: Arrays | None = None
        self._captures = captures and all(spec.is_fixed for spec in manifest.inputs)
        self._graphs = Graphs()
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
        return self._launch(inputs, self._graphs.best(size_of(inputs)))

    def capture(self, batch: Arrays, tolerance: Tolerance, between: Between = nothing) -> None:
        """Capture the forward of a batch as a graph, and measure whether it is faster.

        Args:
            batch: a batch of this size, which was run before.
            tolerance: of its outputs; a graph whose outputs differ by more is not used.
            between: called between forwards.
        """
        rows = size_of(batch)
        if not self._captures or self._graphs.knows(rows):
            return
        plain = partial(self._run, batch, None)
        expected = {name: array.copy() for name, array in plain().items()}
        graph = self._graph_of(batch, rows)
        runs: dict[bool, Callable[[], object]] = {False: plain}
        if graph is not None:
            try:
                if _agree(self._run(batch, graph), expected, tolerance):
                    runs[True] = partial(self._run, batch, graph)
                else:
                    LOG.warning("graph_not_used", rows=rows, reason="its outputs differ")
            except OutOfMemory as error:
                LOG.warning("graph_not_used", rows=rows, reason=str(error))
        times_by_run = time_interleaved(runs, TIMED_ROUNDS, TIMING_BUDGET_S, between)
        median_s = {
            has_graph: statistics.median(times) for has_graph, times in times_by_run.items()
        }
        if True in median_s:
            self._graphs.record(rows, median_s[False], graph, median_s[True])
        else:
            self._graphs.record(rows, median_s[False])

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
        self._graphs.clear()
        self._free.clear()

    def _launch(self, inputs: Arrays, graph: Graph | None) -> LaneBatch:
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
                batch.begin(slot, host_in, graph)
        except BaseException:
            batch.abort()
            raise
        return batch

    def _run(self, inputs: Arrays, graph: Graph | None) -> Arrays:
        return self._launch(inputs, graph).outputs()

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

    def _graph_of(self, batch: Arrays, rows: int) -> Graph | None:
        try:
            with faults_of(self.device):
                inputs = [
                    self.streams.device_bytes(batch[spec.name].nbytes)
                    .view(_dtype(spec))
                    .view(batch[spec.name].shape)
                    for spec in self.manifest.inputs
                ]
                with torch.inference_mode():
                    outputs, replay = self.streams.capture(lambda: self.forward(inputs))
        except OutOfMemory as error:  # only this size does not fit
            LOG.info("graph_not_captured", rows=rows, reason=str(error))
            return None
        except CaptureFailed as failure:
            self._captures = False
            LOG.info("graph_not_captured", rows=rows, reason=str(failure))
            return None
        if any(tensor.ndim == 0 or len(tensor) != rows for tensor in outputs):
            return None
        return Graph(rows, inputs, outputs, replay)


def _agree(actual: Arrays, expected: Arrays, tolerance: Tolerance) -> bool:
    return all(
        tolerance.excess(row, other) is None
        for name, rows in expected.items()
        for row, other in zip(rows, actual[name], strict=True)
    )


def _bucket(rows: int) -> int:
    return (rows - 1).bit_length()


def _dtype(spec: TensorSpec) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype
