"""The streams of a CUDA device: see `app.backends.lane`."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from app.backends.lane import DeviceSpan, DeviceWork

_OF_THREAD = threading.local()


class CudaSpan:
    """The time between two events of a stream; see `app.backends.lane.DeviceSpan`."""

    def __init__(self, start: torch.cuda.Event, end: torch.cuda.Event) -> None:
        self._began = start
        self.end = end

    def wait(self) -> None:
        """See `DeviceSpan`; without the GIL, and without a busy processor."""
        self.end.synchronize()

    @property
    def is_done(self) -> bool:
        query: Callable[[], bool] = self.end.query  # untyped in torch
        return query()

    @property
    def seconds(self) -> float:
        milliseconds: float = self._began.elapsed_time(self.end)
        return milliseconds / 1000


class CudaStreams:
    """See `DeviceStreams`; all models of a thread on a device share them and take turns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Otherwise each change of stream would pass through device 0 and create a context there.
        torch.cuda.set_device(device)
        stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream  # untyped in torch
        self._copy_in, self._compute, self._copy_out = (stream(device) for _ in range(3))

    def host_bytes(self, count: int) -> torch.Tensor:
        """See `DeviceStreams`: pinned, so that copies need no thread of this process."""
        return torch.empty(count, dtype=torch.uint8, pin_memory=True)

    def device_bytes(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8, device=self.device)

    def copy_in(self, work: DeviceWork) -> DeviceSpan:
        return self._do(self._copy_in, work)

    def compute(self, work: DeviceWork, after: DeviceSpan) -> DeviceSpan:
        return self._do(self._compute, work, after)

    def copy_out(self, work: DeviceWork, after: DeviceSpan) -> DeviceSpan:
        return self._do(self._copy_out, work, after)

    def finish(self) -> None:
        for stream in (self._copy_in, self._compute, self._copy_out):
            stream.synchronize()

    def _do(
        self, stream: torch.cuda.Stream, work: DeviceWork, after: DeviceSpan | None = None
    ) -> DeviceSpan:
        with torch.cuda.stream(stream):
            if isinstance(after, CudaSpan):
                stream.wait_event(after.end)
            elif after is not None:
                raise TypeError("bug: a CUDA stream cannot wait for another device's span")
            began = _event(stream)
            work()
            return CudaSpan(began, _event(stream))  # on error the caller waits for the whole stream


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    make: Callable[..., torch.cuda.Event] = torch.cuda.Event  # untyped in torch
    event = make(enable_timing=True, blocking=True)
    event.record(stream)
    return event


def streams_of(device: torch.device) -> CudaStreams:
    """The streams of this thread on a device."""
    streams: dict[torch.device, CudaStreams] | None = getattr(_OF_THREAD, "streams", None)
    if streams is None:
        streams = _OF_THREAD.streams = {}
    if device not in streams:
        streams[device] = CudaStreams(device)
    return streams[device]
