"""A lane: every batch gets its own answers, however late the device works."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from app.backends.base import Backend, LaunchedBatch
from app.backends.forward import FormBackend
from app.errors import ModelError, ReplicaError
from app.registry.repository import Artifact, Repository
from app.types import Array, Arrays, Device, ModelId
from models.plan import Form
from tests.artifacts import write_artifact, write_small
from tests.late_streams import LateStreams, Order
from tests.unit.app.backends.suite import BackendSuite

CPU = torch.device("cpu")
ORDERS = [
    (Order.NO_MORE_THAN_NEEDED, 0),
    (Order.OTHERS_FIRST, 0),
    *((Order.ANY, seed) for seed in range(2)),
]


class LateBackend(FormBackend):
    """A TorchScript backend on late streams."""

    def __init__(self, artifact: Artifact, streams: LateStreams) -> None:
        form = Form(variant="script")
        super().__init__(artifact.folder, artifact.manifest, form, Device("cpu"))
        self.late = streams

    works_by_itself = True

    def streams(self) -> LateStreams:
        """See `FormBackend`."""
        return self.late


@pytest.fixture(params=ORDERS, ids=lambda each: f"{each[0].name.lower()}-{each[1]}")
def streams(request: pytest.FixtureRequest) -> LateStreams:
    order, seed = request.param
    return LateStreams(order, seed)


@pytest.fixture
def double(tmp_path: Path) -> Artifact:
    write_artifact(tmp_path, "double")
    return Repository(tmp_path).open(ModelId("double", 1))


@pytest.fixture
def small(tmp_path: Path) -> Artifact:
    write_small(tmp_path, ["script"])
    return Repository(tmp_path).open(ModelId("small", 1))


def numbered(first: int, rows: int) -> Arrays:
    """A unique batch, with `doubled` as its correct answer."""
    numbers = np.arange(2 * first, 2 * (first + rows), dtype=np.float32)
    return {"x": (numbers % 791 / 8).reshape(rows, 2)}  # the model takes up to 100


def doubled(first: int, rows: int) -> Array:
    return np.asarray(2 * numbered(first, rows)["x"])


class TestLateBackend(BackendSuite):
    """What every backend must do holds on such a device."""

    shared = False

    @pytest.fixture(autouse=True)
    def _artifact(self, double: Artifact, streams: LateStreams) -> None:
        self.artifact, self.streams = double, streams

    def make(self) -> Backend:
        return LateBackend(self.artifact, self.streams)

    def batch(self, size: int) -> Arrays:
        return numbered(0, size)

    def bad_batch(self) -> Arrays:
        return {"x": np.full((2, 2), 1000, np.float32)}


def loaded(artifact: Artifact, streams: LateStreams, warm: Sequence[int] = ()) -> LateBackend:
    backend = LateBackend(artifact, streams)
    backend.load()
    backend.warm_up([numbered(7, rows) for rows in warm])
    return backend


def test_two_batches_in_flight_get_their_own_answers(
    double: Artifact, streams: LateStreams
) -> None:
    backend = loaded(double, streams)
    sizes = [1 + 5 * (n // 2) % 9 for n in range(40)]
    firsts = [0, *itertools.accumulate(sizes)]
    before: tuple[int, int, LaunchedBatch] | None = None
    for first, rows in zip(firsts, sizes, strict=False):
        staged = backend.stage({"x": (rows, 2)})
        staged["x"][:] = numbered(first, rows)["x"]
        launched = backend.launch(staged)
        if before is not None:
            _check(before)
        before = (first, rows, launched)
    assert before is not None
    _check(before)
    assert streams.waiting == 0


def _check(batch: tuple[int, int, LaunchedBatch]) -> None:
    first, rows, launched = batch
    np.testing.assert_array_equal(launched.outputs()["y"], doubled(first, rows))


def test_unstaged_batch_is_copied_before_launch_returns(
    double: Artifact, streams: LateStreams
) -> None:
    backend = loaded(double, streams)
    batch = numbered(3, 4)
    launched = backend.launch(batch)
    batch["x"][:] = -1  # the caller may reuse it
    np.testing.assert_array_equal(launched.outputs()["y"], doubled(3, 4))


def test_failed_batch_does_not_affect_other_batches(double: Artifact, streams: LateStreams) -> None:
    backend = loaded(double, streams)
    for _ in range(3):
        good = backend.launch(numbered(1, 3))
        bad = backend.launch({"x": np.full((2, 2), 1000, np.float32)})
        np.testing.assert_array_equal(good.outputs()["y"], doubled(1, 3))
        with pytest.raises(ModelError):
            bad.outputs()
    assert streams.waiting == 0


def test_a_third_batch_is_reported_as_a_bug(double: Artifact, streams: LateStreams) -> None:
    backend = loaded(double, streams)
    first, second = backend.launch(numbered(1, 3)), backend.launch(numbered(4, 3))
    with pytest.raises(ReplicaError, match="a third batch"):
        backend.launch(numbered(7, 3))
    np.testing.assert_array_equal(first.outputs()["y"], doubled(1, 3))
    np.testing.assert_array_equal(second.outputs()["y"], doubled(4, 3))
    with pytest.raises(ReplicaError, match="twice"):
        first.outputs()


def test_memory_is_allocated_once(double: Artifact) -> None:
    streams = LateStreams()
    backend = loaded(double, streams, (1, 2, 4, 8))
    before = len(streams.made_bytes)
    for first in range(50):
        launched = backend.launch(numbered(first, 1 + first % 8))
        backend.run(numbered(first, 8))
        launched.outputs()
    assert len(streams.made_bytes) <= before + 3  # of the slot that warming did not use


def test_device_times_are_reported(double: Artifact) -> None:
    backend = loaded(double, LateStreams())
    launched = backend.launch(numbered(1, 3))
    launched.outputs()
    assert launched.times() == pytest.approx((0.001, 0.001, 0.001))


def test_serving_reports_asynchronous_launches(double: Artifact) -> None:
    serving = loaded(double, LateStreams(), (1,)).serving()
    assert serving.launches
    assert serving.prefetches
    form = Form(variant="script")
    plain = FormBackend(double.folder, double.manifest, form, Device("cpu"))
    plain.load()
    plain.warm_up([numbered(1, 1)])
    assert not plain.serving().launches
    with pytest.raises(ReplicaError, match="it only runs them"):
        plain.launch(numbered(1, 1))


def test_expected_time_is_the_last_measured_time(double: Artifact) -> None:
    backend = loaded(double, LateStreams())
    assert backend.launch(numbered(1, 4)).expected_s == 0.0
    backend.run(numbered(1, 4))
    launched = backend.launch(numbered(1, 3))  # of the same bucket
    assert launched.expected_s == pytest.approx(0.003)
    launched.outputs()


def test_closing_waits_for_batches_in_flight(double: Artifact) -> None:
    streams = LateStreams()
    backend = loaded(double, streams)
    backend.launch(numbered(1, 3))
    assert streams.waiting
    backend.close()
    assert not streams.waiting


def test_a_failed_launch_ends_before_its_memory_is_reused(double: Artifact) -> None:
    streams = LateStreams(tells_at_once=True)
    backend = loaded(double, streams)
    for _ in range(3):
        good = backend.launch(numbered(1, 2))
        with pytest.raises(ModelError):
            backend.launch({"x": np.full((2, 2), 1000, np.float32)})
        again = backend.launch(numbered(4, 2))
        np.testing.assert_array_equal(good.outputs()["y"], doubled(1, 2))
        np.testing.assert_array_equal(again.outputs()["y"], doubled(4, 2))
