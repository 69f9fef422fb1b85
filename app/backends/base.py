"""The contract of a backend: one loaded model on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

import structlog

from app.types import Arrays, BatchTimes, DeviceTimes, Serving
from models.timing import nothing

LOG = structlog.get_logger(__name__)

# Called between the forwards of a long operation to let other work run: see `Replica.install`.
Between: TypeAlias = Callable[[], None]


class WarmUp(NamedTuple):
    """The result of a warm-up.

    Attributes:
        largest: the largest batch worth running, in items; larger ones were not warmed.
        seconds: the times of runs that golden examples have passed; empty if none was replayed.
            Larger batches of a length that is in it are not worth running.
    """

    largest: int
    seconds: BatchTimes = MappingProxyType({})


class Backend(Protocol):
    """Called in the order load, warm_up, run..., close, by one thread at a time.

    `run` and `close` are called in the replica's thread. So is `warm_up` if the backend launches;
    otherwise it gets its own thread (`app.engine.proving`).

    Every implementation passes the shared suite in tests/unit/app/backends/suite.py.
    """

    def load(self) -> None:
        """Load the variant's file onto the device; may run in any thread.

        Raises:
            ArtifactInvalid: if the file does not match the manifest.
            ReplicaError: if the device fails.
        """

    def warm_up(self, batches: Iterable[Arrays], between: Between = nothing) -> WarmUp:
        """Run each batch as often as its format needs to be as fast as it will be.

        Args:
            batches: input name -> array with the batch axis, in ascending sizes; batches of the
                same size have different shapes. They are consumed one by one, so each may be
                created on demand.
            between: called between forwards.
        """

    def shares(self, other: Backend) -> bool:
        """Whether both run the same loaded objects, so that what warmed one has warmed the other.

        Args:
            other: a backend of the same model, perhaps closed.
        """

    def run(self, inputs: Arrays) -> Arrays:
        """One forward.

        Args:
            inputs: input name -> array [n, ...] of the manifest's dtype; never modified.

        Returns:
            output name -> array [n, ...]; the next run may overwrite it.

        Raises:
            ModelError: if the batch made the model fail; the replica can continue.
            ReplicaError: if the replica no longer works.
        """

    def serving(self) -> Serving:
        """The form for each batch size, once warm; before that, only whether it launches."""

    def close(self) -> None:
        """Release the memory; may be called twice and after a failed load."""


class LaunchedBatch(Protocol):
    """A batch that is running on the device."""

    def outputs(self) -> Arrays:
        """Wait for the outputs; called once.

        Returns:
            output name -> array [n, ...]; the next staged or launched batch may overwrite it.

        Raises:
            ModelError, ReplicaError: as `Backend.run` does.
        """

    @property
    def expected_s(self) -> float:
        """Expected seconds on the device, from the launch on; 0 if not yet known."""

    @property
    def is_done(self) -> bool:
        """Whether `outputs` would return or raise without waiting."""

    def times(self) -> DeviceTimes:
        """Seconds on the device; called after `outputs`."""


class LaunchingBackend(Backend, Protocol):
    """A backend whose device works asynchronously: another batch may be launched while one runs.

    At most two batches are in flight, and the thread waits for them in order. These methods are
    called only on backends whose `Serving.launches` is true.
    """

    def stage(self, shapes: Mapping[str, Sequence[int]]) -> Arrays:
        """Buffers of these shapes, in which to assemble the next batch to launch."""

    def launch(self, inputs: Arrays) -> LaunchedBatch:
        """Start a forward and return.

        Args:
            inputs: as for `run`; buffers from `stage` need no further copy.

        Raises:
            ModelError, ReplicaError: as `run` does; then nothing was started.
        """


def size_of(batch: Arrays) -> int:
    """Number of items in a batch."""
    return len(next(iter(batch.values())))


def close_safely(backend: Backend) -> None:
    """Close a backend that is given up; an error is logged and does not hide another one."""
    try:
        backend.close()
    except Exception:  # on a lost device even releasing memory may fail
        LOG.exception("backend_not_closed")
