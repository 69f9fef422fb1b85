"""The streams of a CUDA device: see `app.backends.streams`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

import torch

from app.backends.streams import CaptureFailed, Span, Work

_OF_THREAD = threading.local()


class CudaSpan:
    """What stands between two events of a stream; see `app.backends.streams.Span`."""

    def __init__(self, began: torch.cuda.Event, ended: torch.cuda.Event) -> None:
        self._began = began
        self.ended = ended

    def wait(self) -> None:
        """See `Span`; without the GIL."""
        self.ended.synchronize()

    @property
    def is_done(self) -> bool:
        """See `Span`."""
        query: Callable[[], bool] = self.ended.query  # untyped in torch
        return query()

    @property
    def seconds(self) -> float:
        """See `Span`."""
        milliseconds: float = self._began.elapsed_time(self.ended)
        return milliseconds / 1000


class CudaStreams:
    """See `Streams`; all models that one thread runs on a device share them and take turns.

    Args:
        device: one of CUDA.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Else each change of stream would go by way of device 0, and make a context there.
        torch.cuda.set_device(device)
        stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream  # untyped in torch
        self._copy_in, self._compute, self._copy_out = (stream(device) for _ in range(3))
        # One for all graphs, which run one after the other and whose outputs are copied: they share
        # its memory, and a capture that fails leaves it to the next.
        self._pool = torch.cuda.graph_pool_handle()

    def host_bytes(self, count: int) -> torch.Tensor:
        """See `Streams`: pinned, so that copies need no thread of this process."""
        return torch.empty(count, dtype=torch.uint8, pin_memory=True)

    def device_bytes(self, count: int) -> torch.Tensor:
        """See `Streams`."""
        return torch.empty(count, dtype=torch.uint8, device=self.device)

    def copy_in(self, work: Work) -> Span:
        """See `Streams`."""
        return self._do(self._copy_in, work)

    def compute(self, work: Work, after: Span) -> Span:
        """See `Streams`."""
        return self._do(self._compute, work, after)

    def copy_out(self, work: Work, after: Span) -> Span:
        """See `Streams`."""
        return self._do(self._copy_out, work, after)

    def capture(
        self, forward: Callable[[], Sequence[torch.Tensor]]
    ) -> tuple[Sequence[torch.Tensor], Work]:
        """See `Streams`.

        With the error mode `thread_local`: whatever other replicas allocate meanwhile is theirs.
        Without `torch.cuda.graph`, which would make the whole device wait.
        """
        graph = torch.cuda.CUDAGraph()
        self.finish()
        try:
            with torch.cuda.stream(self._compute):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    made = forward()
                except BaseException:
                    with contextlib.suppress(RuntimeError):  # it says once more that it failed
                        graph.capture_end()
                    raise
                graph.capture_end()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()  # what is cached, a graph cannot have: the next one may fit
            raise
        except (RuntimeError, ValueError, TypeError) as error:  # also `torch.AcceleratorError`
            # A capture that fails leaves the device as it was: were it lost, the next forward says.
            raise CaptureFailed(str(error)) from error
        return made, graph.replay

    def finish(self) -> None:
        """See `Streams`."""
        for stream in (self._copy_in, self._compute, self._copy_out):
            stream.synchronize()

    def _do(self, stream: torch.cuda.Stream, work: Work, after: Span | None = None) -> Span:
        with torch.cuda.stream(stream):
            if isinstance(after, CudaSpan):
                stream.wait_event(after.ended)
            elif after is not None:
                raise TypeError("bug: CUDA is to wait for what no CUDA device does")
            began = _event(stream)
            work()
            return CudaSpan(began, _event(stream))  # whoever raises waits for all of the stream


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    make: Callable[..., torch.cuda.Event] = torch.cuda.Event  # untyped in torch
    event = make(enable_timing=True)
    event.record(stream)
    return event


def streams_of(device: torch.device) -> CudaStreams:
    """Those of this thread."""
    known: dict[torch.device, CudaStreams] | None = getattr(_OF_THREAD, "streams", None)
    if known is None:
        known = _OF_THREAD.streams = {}
    if device not in known:
        known[device] = CudaStreams(device)
    return known[device]
