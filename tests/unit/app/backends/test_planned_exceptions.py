"""Unusable and wrong forms, and what replicas of one process share."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from structlog.testing import capture_logs

from app.backends.planned import Measurement, Measurements
from app.errors import (
    ArtifactInvalid,
    DeviceLost,
    ModelError,
    ReplicaError,
    TorchlaneError,
    VariantUnusable,
)
from app.types import Array
from models.plan import Step
from models.tensors import Tolerance
from tests.unit.app.backends.stage import SIZES, Stage
from tests.unit.models.manifests import form, steps
from tests.unit.models.stopwatch import Stopwatch

A, B, C = form("a"), form("b", optimized=True), form("c")
MS = 1e-3


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(Stopwatch(monkeypatch))


class TestUnusable:
    def test_unusable_form_of_the_plan_is_replaced(self, stage: Stage) -> None:
        stage.add(A, 2 * MS)
        stage.add(B, 1 * MS)
        rejected = stage.add(C, load_error=VariantUnusable("made for another machine"))
        with capture_logs() as logs:
            backend = stage.warm(steps((1, A), (8, C)))
        assert [stage.ran(backend, size) for size in (1, 8)] == [B, B]
        assert backend.serving().measured_by == "server"
        assert rejected.calls == ["load"]
        assert [log["event"] for log in logs if log["log_level"] != "debug"] == [
            "variant_unusable",
            "plan_measured",
        ]
        assert (logs[0]["form"], logs[0]["reason"]) == ("c", "made for another machine")

    def test_error_lists_every_reason_once(self, stage: Stage) -> None:
        stage.add(A, load_error=VariantUnusable("a file for others"))
        stage.add(B, load_error=VariantUnusable("a file for others"))
        stage.add(C, load_error=VariantUnusable("no folder"))
        message = "^a file for others; no folder$"
        for stored in (None, steps((8, C))):
            expected = message if stored is None else "^no folder; a file for others$"
            with pytest.raises(VariantUnusable, match=expected):
                stage.backend(stored).load()

    @pytest.mark.parametrize(
        "error", [ArtifactInvalid("altered"), ReplicaError("it does not fit"), DeviceLost("gone")]
    )
    def test_unrelated_errors_are_raised_unchanged(
        self, stage: Stage, error: TorchlaneError
    ) -> None:
        stage.add(A)
        stage.add(B, load_error=error)
        backend = stage.backend()
        with pytest.raises(type(error), match=re.escape(str(error))):
            backend.load()
        backend.close()
        assert stage.fakes[A].calls == ["load", "close"]


class TestGolden:
    @pytest.mark.parametrize("stored", [None, steps((1, A), (8, B))])  # B serves batches of 4
    def test_wrong_answers_of_a_form_invalidate_the_artifact(
        self, stage: Stage, stored: tuple[Step, ...] | None
    ) -> None:
        stage.add(A)
        # It would never be chosen, and is wrong at one size only.
        stage.add(B, 99 * MS, answer=lambda x: x * 2 + (len(x) == 4))
        message = "tiny/3: golden example 0 in a batch of 4: output 'value' differs by up to 1"
        with pytest.raises(ArtifactInvalid, match=re.escape(message)) as caught:
            stage.warm(stored)
        assert not isinstance(caught.value, VariantUnusable)

    def test_each_form_has_its_own_tolerance(self, stage: Stage) -> None:
        wide = Tolerance(absolute=0.5, relative=0)
        stage.add(A, answer=lambda x: x * 2 + np.float32(0.4), tolerance=wide)
        stage.add(B)
        assert stage.warm().serving().measured_by == "server"
        stage.add(A, answer=lambda x: x * 2 + np.float32(0.4))
        with pytest.raises(ArtifactInvalid, match="golden example 0"):
            stage.warm()


class TestContest:
    """What happens to forms that were never tried on such a machine."""

    def test_failing_form_is_dropped_if_others_remain(self, stage: Stage) -> None:
        def fails(x: Array) -> Array:
            raise ModelError("no such instruction")

        stage.add(A, answer=fails)
        stage.add(B)
        with capture_logs() as logs:
            backend = stage.warm()
        assert stage.ran(backend, 4) == B
        assert stage.fakes[A].calls[-1] == "close"
        (told,) = (log for log in logs if log["event"] == "form_dropped")
        assert (told["form"], told["problem"]) == ("a", "no such instruction")
        with pytest.raises(ModelError):
            stage.warm(steps((8, A)), key="stored")

    def test_forms_that_answer_differently_are_never_mixed(self, stage: Stage) -> None:
        stage.add(A, lambda size: 1 * MS if size < 8 else 9 * MS)
        stage.add(B, lambda size: 2 * MS)
        assert stage.warm().serving().steps[-1].up_to == 8
        backend = stage.warm(key="unlike", mixable=False)
        assert {stage.ran(backend, size) for size in SIZES} == {A}


class TestReplicas:
    def test_other_replicas_reuse_the_measurement(self, stage: Stage) -> None:
        stage.add(A, 9 * MS)
        stage.add(B, 1 * MS)
        first = stage.warm()
        assert stage.timed(A)
        for _ in range(2):
            stage.add(A, 1 * MS)  # it would win now
            stage.add(B, 9 * MS)
            second = stage.warm()
            assert stage.fakes[A].calls == []  # the loser is not even loaded
            assert not stage.timed(B)
            assert second.serving() == first.serving()
            assert stage.ran(second, 8) == B
            second.close()


class TestMeasurements:
    found = Measurement(steps((1, A)), {}, 1)

    def test_concurrent_threads_measure_once(self) -> None:
        measurements, together = Measurements(), threading.Barrier(2)
        begun: list[str] = []
        seen: list[Measurement] = []

        def measure() -> Measurement:
            begun.append("one")
            return Measurement(steps((1, A)), {}, 1)

        def work() -> None:
            together.wait()
            seen.append(measurements.get("key", measure))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert begun == ["one"]
        assert seen[0] is seen[1]

    def test_failed_measurement_is_repeated(self) -> None:
        measurements = Measurements()

        def fails() -> Measurement:
            raise ReplicaError("it broke")

        with pytest.raises(ReplicaError):
            measurements.get("key", fails)
        assert measurements.get("key", lambda: self.found) is self.found
