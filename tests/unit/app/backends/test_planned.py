"""One backend of several forms: it follows a plan that holds, and makes its own where none does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from app.backends.base import Backend
from app.backends.devices import cpu_threads
from app.backends.factory import TorchBackends
from app.backends.fake import FakeBackend
from app.backends.planned import Candidate, Measurements, PlannedBackend
from app.backends.selection import Preference, select
from app.errors import ModelError, ReplicaError
from app.registry.repository import Artifact, Repository
from app.types import Arrays, Device, ModelId, ServedStep, Serving
from tests.artifacts import write_small
from tests.unit.app.backends.stage import SIZES, Stage, batch, golden
from tests.unit.app.backends.suite import BackendSuite, SmallSuite
from tests.unit.models.manifests import XEON, form, steps
from tests.unit.models.stopwatch import Stopwatch

A, B, C = form("a"), form("b", optimized=True), form("c")
CPU = Device("cpu")
MS = 1e-3
WARMED = [batch(size) for size in SIZES]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(Stopwatch(monkeypatch))


class TestPlannedBackend(BackendSuite):
    shared = False  # as fakes

    def make(self) -> Backend:
        def script(inputs: Arrays) -> Arrays | None:
            if (inputs["x"] < 0).any():
                raise ModelError("negative")
            return None

        parts = {each: Candidate(FakeBackend(script), golden()) for each in (A, B)}
        return PlannedBackend(parts, None, XEON, Measurements(), "key")

    def batch(self, size: int) -> Arrays:
        return batch(size)

    def bad_batch(self) -> Arrays:
        return {"x": np.full((2, 1), -1, np.float32)}


class TestRealPlannedBackend(SmallSuite):
    """Script, script optimized at load, and a compiled form, timed by the suite itself."""

    backends = TorchBackends((CPU,), 8, cpu_threads((CPU,)))

    @pytest.fixture(autouse=True)
    def _artifact(self, tmp_path: Path) -> None:
        write_small(tmp_path, ["script", "compiled"])
        self.artifact: Artifact = Repository(tmp_path).open(ModelId("small", 1))

    def make(self) -> Backend:
        selection = select(self.artifact.manifest, Preference())
        assert len(selection.candidates) == 3
        folder, manifest = self.artifact.folder, self.artifact.manifest
        return self.backends.make(folder, manifest, self.artifact.digest, selection, CPU)


class TestStoredPlan:
    def test_each_batch_runs_in_the_form_of_its_step(self, stage: Stage) -> None:
        for each in (A, B, C):
            stage.add(each)
        backend = stage.warm(steps((1, A), (4, B), (8, C)))
        assert [stage.ran(backend, size) for size in (1, 2, 3, 4, 5, 8, 9)] == [A, B, B, B, C, C, C]

    def test_forms_outside_the_plan_are_never_loaded(self, stage: Stage) -> None:
        for each in (A, B, C):
            stage.add(each)
        stage.warm(steps((1, C), (8, A)))
        assert stage.fakes[B].calls == []


class TestMeasured:
    def test_fastest_form_is_chosen_at_each_size(self, stage: Stage) -> None:
        stage.add(A, lambda size: 1 * MS * size)
        stage.add(B, lambda size: 3 * MS)
        stage.add(C, 20 * MS)
        with capture_logs() as logs:
            backend = stage.warm()
        assert [stage.ran(backend, size) for size in (1, 2, 4, 8, 9)] == [A, A, B, B, B]
        assert backend.serving() == Serving(
            (ServedStep(2, "a"), ServedStep(8, "b, optimized at load")),
            str(XEON),
            "server",
            {
                "a": {1: 1000, 2: 2000, 4: 4000, 8: 8000},
                "b, optimized at load": dict.fromkeys(SIZES, 3000),
                "c": dict.fromkeys(SIZES, 20_000),
            },
        )
        told = [log for log in logs if log["event"] == "plan_measured"]
        assert [(log["processor"], log["steps"]) for log in told] == [
            (str(XEON), {2: "a", 8: "b, optimized at load"})
        ]

    def test_only_unused_forms_are_closed(self, stage: Stage) -> None:
        stage.add(A, 1 * MS)
        stage.add(B, 9 * MS)
        backend = stage.warm()
        assert stage.fakes[B].calls[-1] == "close"
        assert "close" not in stage.fakes[A].calls
        backend.close()
        assert [fake.calls.count("close") for fake in stage.fakes.values()] == [1, 1]

    def test_single_form_is_not_timed(self, stage: Stage) -> None:
        stage.add(A)
        backend = stage.warm()
        assert not stage.timed(A)
        assert backend.serving() == Serving((ServedStep(None, "a"),))


class TestSlow:
    """Forms of a slow model: nothing runs that cannot change the plan."""

    def test_batches_that_gain_nothing_are_not_run(self, stage: Stage) -> None:
        stage.add(A, lambda size: 200 * MS * size)
        stage.add(B, lambda size: 190 * MS * size)
        backend = stage.backend()
        backend.load()
        assert backend.warm_up(WARMED).largest == 4
        assert max(len(values) for fake in stage.fakes.values() for values in fake.batches) == 4
        assert stage.ran(backend, 4) == B

    def test_other_replicas_stop_at_the_same_size(self, stage: Stage) -> None:
        stage.add(A, lambda size: 200 * MS * size)
        stage.add(B, lambda size: 100 * MS * size)
        stage.warm()
        stage.add(B, lambda size: 100 * MS * size)
        second = stage.backend()
        second.load()
        assert second.warm_up(WARMED).largest == 4
        assert max(map(len, stage.fakes[B].batches)) == 4


class TestLife:
    def test_it_runs_only_between_load_and_close(self, stage: Stage) -> None:
        stage.add(A)
        stage.add(B)
        backend = stage.backend()
        with pytest.raises(ReplicaError, match="bug"):
            backend.run(batch(1))
        backend.load()
        backend.close()
        with pytest.raises(ReplicaError, match="bug"):
            backend.run(batch(1))
        backend.load()
        backend.warm_up(WARMED)
        assert stage.ran(backend, 4) == A

    @pytest.mark.parametrize("stored", [True, False])
    def test_unwarmed_backend_follows_the_stored_plan(self, stage: Stage, stored: bool) -> None:
        stage.add(A)
        stage.add(B)
        backend = stage.backend(steps((1, B), (8, A)) if stored else None)
        backend.load()
        assert [stage.ran(backend, size) for size in (1, 8)] == [B if stored else A, A]
        assert backend.serving().measured_by == ("export" if stored else None)

    def test_failed_close_still_closes_the_others(self, stage: Stage) -> None:
        class Stubborn(FakeBackend):
            def close(self) -> None:
                raise RuntimeError("the device is gone")

        stage.parts[A] = Candidate(Stubborn(), golden())
        stage.add(B)
        backend = stage.backend(steps((1, A), (8, B)))
        backend.load()
        with capture_logs() as logs:
            backend.close()
        assert stage.fakes[B].calls[-1] == "close"
        assert [log["event"] for log in logs] == ["backend_not_closed"]
