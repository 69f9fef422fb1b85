"""What is timed, and which steps follow from the times."""

from __future__ import annotations

import numpy as np
import pytest

from export.timing import tune
from export.timing.contest import Contest
from models.golden import golden_batches
from models.plan import Form
from tests.unit.models.manifests import example, make_manifest, spec, with_variants

SCRIPT = make_manifest().variants["script"]
PLAIN, OPTIMIZED = Form(variant="script"), Form(variant="script", optimized=True)


class TestSteps:
    """From what was measured, in seconds; no clock is read."""

    @pytest.mark.parametrize(("precision", "mixes"), [("bf16", False), ("float32", True)])
    def test_forms_that_answer_differently_are_not_mixed(self, precision: str, mixes: bool) -> None:
        """Each is faster at one size; the optimized one by more."""
        variant = SCRIPT.model_copy(
            update={
                "precision": precision,
                "optimized": SCRIPT.parity,
                "interchangeable": False,
            }
        )
        rounds = {1: {PLAIN: [2.0] * 5, OPTIMIZED: [3.0] * 5}, 2: {PLAIN: [9.0], OPTIMIZED: [4.0]}}
        manifest = with_variants(make_manifest(), script=variant)
        (steps,) = tune.plan_steps(Contest(manifest, rounds), 2).values()
        expected = [(1, PLAIN), (2, OPTIMIZED)] if mixes else [(2, OPTIMIZED)]
        assert [(step.up_to, step.form) for step in steps] == expected

    def test_lossy_forms_that_answer_alike_are_mixed(self) -> None:
        variant = SCRIPT.model_copy(update={"precision": "bf16", "optimized": SCRIPT.parity})
        rounds = {1: {PLAIN: [2.0] * 5, OPTIMIZED: [3.0] * 5}, 2: {PLAIN: [9.0], OPTIMIZED: [4.0]}}
        manifest = with_variants(make_manifest(), script=variant)
        (steps,) = tune.plan_steps(Contest(manifest, rounds), 2).values()
        assert [step.form for step in steps] == [PLAIN, OPTIMIZED]


class TestGoldenBatches:
    def test_batches_cycle_through_examples_of_each_shape(self) -> None:
        arrays = [
            np.full((count, 1), value, np.float32)
            for count, value in ((1, 10), (2, 20), (1, 11), (1, 12))
        ]
        manifest = make_manifest(
            inputs=[spec("x", shape=(-1, -1, 1))],
            golden=[example({"x": array}, {"value": np.zeros(1, np.float32)}) for array in arrays],
        )
        batches = golden_batches(manifest, 4)
        assert [batch["x"][:, 0, 0].tolist() for batch in batches] == [[10, 11, 12, 10], [20] * 4]
        assert [batch["x"].shape for batch in batches] == [(4, 1, 1), (4, 2, 1)]
