"""The contract of a backend: one loaded model on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import structlog

from app.types import Arrays, DeviceTimes, Serving
from models.timing import nothing

LOG = structlog.get_logger(__name__)

# Called between the forwards of something long, which others may use: see `Replica.install`.
Between: TypeAlias = Callable[[], None]


class Backend(Protocol):
    """Called in the order load, warm_up, run..., close, by one thread at a time.

    `run` and `close` are called in the replica's thread. So is `warm_up`, if the backend says that
    it launches; else it is called in a thread of its own (`app.engine.execution.proving`).

    Every implementation passes the shared suite in tests/unit/app/backends/suite.py.
    """

    def load(self) -> None:
        """Read the variant's file and put it on the device; in whatever thread has time for it.

        Raises:
            ArtifactInvalid: if the file is not what the manifest says.
            ReplicaError: if the device refuses.
        """

    def warm_up(self, batches: Iterable[Arrays], between: Between = nothing) -> int:
        """Run each batch at least three times: TorchScript specialises on the second and third.

        Args:
            batches: input name -> array with the batch axis, in ascending sizes; several of one
                size have different shapes. They are taken one by one: each may be made when it is
                asked for.
            between: called between forwards.

        Returns:
            the largest batch that it is worth running, in items; it is not warmed beyond that.
        """

    def run(self, inputs: Arrays) -> Arrays:
        """One forward.

        Args:
            inputs: input name -> array [n, ...] of the manifest's dtype; never written to.

        Returns:
            output name -> array [n, ...]; a run that follows may overwrite it.

        Raises:
            ModelError: if the batch made the model fail; the replica can go on.
            ReplicaError: if the replica does not work any more.
        """

    def serving(self) -> Serving:
        """What it runs at which batch size, once it was warmed; before, whether it launches."""

    def close(self) -> None:
        """Give the memory back; may be called twice and after a failed load."""


class Launched(Protocol):
    """A batch that the device works at."""

    def outputs(self) -> Arrays:
        """Wait for it; called once.

        Returns:
            output name -> array [n, ...]; what is staged or launched after this may overwrite it.

        Raises:
            ModelError, ReplicaError: as `Backend.run` does.
        """

    @property
    def expected_s(self) -> float:
        """What the device alone is expected to take, from its launch on; 0: nobody knows yet."""

    @property
    def is_done(self) -> bool:
        """Whether `outputs` would not have to wait; also where it would raise."""

    def times(self) -> DeviceTimes:
        """What it took; asked after `outputs`."""


class LaunchingBackend(Backend, Protocol):
    """A backend whose device works by itself: another batch may be launched while one runs.

    One more, not two; and its thread waits for them in their order. Asked for these methods is only
    who says `Serving.launches`.
    """

    def stage(self, shapes: Mapping[str, Sequence[int]]) -> Arrays:
        """Where a batch of these shapes is best put together, to be launched next."""

    def launch(self, inputs: Arrays) -> Launched:
        """Begin a forward, and return.

        Args:
            inputs: as for `run`; those that `stage` gave need no further copy.

        Raises:
            ModelError, ReplicaError: as `run` does; nothing was begun then.
        """


def size_of(batch: Arrays) -> int:
    """How many items a batch has."""
    return len(next(iter(batch.values())))


def close_safely(backend: Backend) -> None:
    """Close a backend that is given up; what goes wrong is logged and hides nothing else."""
    try:
        backend.close()
    except Exception:  # on a lost device even giving memory back may fail
        LOG.exception("backend_not_closed")
