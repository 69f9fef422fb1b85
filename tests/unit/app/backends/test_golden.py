"""Golden examples: what a replica must answer before it serves."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from app.backends.fake import FakeBackend
from app.backends.golden import TRIES, Golden
from app.errors import ArtifactInvalid
from app.types import Array, Arrays, ServedStep, Serving
from models.tensors import Tolerance
from tests.unit.models.manifests import EXACT, example, make_manifest, spec


def golden(*rows: Sequence[float], tolerance: Tolerance = EXACT) -> Golden:
    """Examples of x -> 2 x, of any length each."""
    examples = [example({"x": vector(row)}, {"value": 2 * vector(row)}) for row in rows]
    free = (-1, -1)
    manifest = make_manifest([spec("x", shape=free)], [spec("value", shape=free)], golden=examples)
    return Golden(manifest, tolerance)


def vector(row: Sequence[float]) -> Array:
    return np.array(row, np.float32)


class TestReplay:
    def test_replay_runs_examples_alone_then_batched(self) -> None:
        backend = FakeBackend()
        golden([1], [2], [3, 9], [4, 9]).replay(backend, [2, 3])
        alone, batched = backend.batches[: 4 * TRIES], backend.batches[4 * TRIES :]
        assert alone == [[1], [2], [3], [4]] * TRIES
        assert batched == [[1, 2], [3, 4]] * TRIES + [[1, 2, 1], [3, 4, 3]] * TRIES

    def test_slow_runs_of_a_warm_up_are_not_repeated(self) -> None:
        known = {0: {1: 1.0, 2: 0.001}}  # size 4 was not worth running
        backend = FakeBackend()
        took_s = golden([1], [2]).replay(backend, [1, 2, 4], known_times=known)
        assert backend.batches == [[1, 2]] * TRIES
        assert took_s[0].keys() == {1, 2}
        assert took_s[0][1] == 1.0
        assert took_s[0][2] <= 0.001

    def test_every_form_replays_each_example(self) -> None:
        class Serves(FakeBackend):
            def serving(self) -> Serving:
                return Serving((ServedStep(2, "a"), ServedStep(8, "b"), ServedStep(None, "c")))

        backend = Serves()
        golden([1], [2]).replay_forms(backend)
        assert backend.batches == [[1], [2], [1, 2, 1], [1, 2, 1, 2, 1, 2, 1, 2, 1]]

    def test_wrong_answer_error_names_example_and_output(self) -> None:
        def wrong(inputs: Arrays) -> Arrays | None:
            return {"value": inputs["x"] * 2 + 0.5} if inputs["x"][0, 0] == 2 else None

        message = "tiny/3: golden example 1 in a batch of 1: output 'value' differs by up to 0.5"
        with pytest.raises(ArtifactInvalid, match=re.escape(message)):
            golden([1], [2], [3]).replay(FakeBackend(wrong), [4])

    @pytest.mark.parametrize("row", [0, 1, 3])
    def test_one_wrong_row_in_a_batch_is_detected(self, row: int) -> None:
        def wrong(inputs: Arrays) -> Arrays | None:
            value = inputs["x"] * 2
            if len(value) == 4:
                value[row] = -1
            return {"value": value}

        with pytest.raises(ArtifactInvalid, match="in a batch of 4"):
            golden([1]).replay(FakeBackend(wrong), [2, 4])

    @pytest.mark.parametrize(("error", "passes"), [(0.009, True), (0.011, False)])
    def test_the_variants_tolerance_decides(self, error: float, passes: bool) -> None:
        backend = FakeBackend(lambda inputs: {"value": inputs["x"] * 2 + np.float32(error)})
        replayed = golden([0, 0], tolerance=Tolerance(absolute=0.01, relative=0))
        if passes:
            replayed.replay(backend, [2])
        else:
            with pytest.raises(ArtifactInvalid):
                replayed.replay(backend, [2])

    @pytest.mark.parametrize(
        ("outputs", "message"),
        [
            ({}, "the model returned outputs [], not 'value'"),
            ({"other": vector([2])}, "the model returned outputs ['other'], not 'value'"),
            ({"value": vector([2, 2])[:, None]}, "output 'value' has shape [2, 1] for 1 items"),
            ({"value": np.float32(2)}, "output 'value' has shape [] for 1 items"),
            ({"value": vector([2, 2])[None]}, "output 'value' shape [2] instead of [1]"),
            ({"value": vector([np.nan])[None]}, "output 'value' differs by up to nan"),
        ],
    )
    def test_malformed_answers_are_rejected(self, outputs: Arrays, message: str) -> None:
        with pytest.raises(ArtifactInvalid, match=re.escape(message)):
            golden([1]).replay(FakeBackend(lambda inputs: outputs), [1])


class TestProbe:
    def test_probe_runs_only_the_first_example(self) -> None:
        backend = FakeBackend()
        golden([5], [6]).probe(backend)
        assert backend.batches == [[5]]


class TestBatches:
    def test_one_per_shape_and_size(self) -> None:
        batches = list(golden([1], [2], [3, 9]).batches([1, 4]))
        assert [batch["x"].shape for batch in batches] == [(1, 1), (1, 2), (4, 1), (4, 2)]
        np.testing.assert_array_equal(batches[3]["x"], [[3, 9]] * 4)
