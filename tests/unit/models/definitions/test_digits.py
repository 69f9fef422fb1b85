"""The digits model: its shape, its data, and what the exported artifact achieved on unseen ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.definitions.digits import DEFINITION, PREPROCESS, pictures, png, split
from models.manifest import Manifest
from models.preprocess import preprocess


@pytest.fixture(scope="module")
def manifest(repository: Path) -> Manifest:
    return Manifest.model_validate_json((repository / "digits/1/manifest.json").read_bytes())


@pytest.mark.parametrize("batch", [1, 3])
def test_model_maps_pictures_to_logits(batch: int) -> None:
    module = DEFINITION.build()
    assert not module.training
    with torch.inference_mode():
        logits = module(torch.zeros(batch, 1, 32, 32))
    assert logits.shape == (batch, 10)


def test_the_split_is_disjoint_complete_and_stratified() -> None:
    labels = pictures()[1]
    train, held_out = split()
    assert set(train).isdisjoint(held_out)
    assert len(train) + len(held_out) == len(labels) == 1797
    assert len(held_out) == pytest.approx(len(labels) / 5, abs=1)
    for digit in range(10):
        count = np.sum(labels == digit)
        assert np.sum(labels[held_out] == digit) == pytest.approx(count / 5, abs=1)


def test_held_out_pictures_are_preprocessed_from_files() -> None:
    assert DEFINITION.held_out is not None
    held_out = DEFINITION.held_out()
    indices = split()[1]
    np.testing.assert_array_equal(held_out.labels, pictures()[1][indices])
    for row in (0, 100, len(indices) - 1):
        from_file = preprocess(png(pictures()[0][indices[row]]), PREPROCESS)
        np.testing.assert_array_equal(held_out.inputs["image"][row], from_file)


def test_calibration_uses_training_pictures() -> None:
    assert DEFINITION.calibration is not None
    batches = DEFINITION.calibration()
    assert {batch["image"].shape for batch in batches} == {(64, 1, 32, 32)}
    indices = split()[0]
    drawn = [array for batch in batches for array in batch["image"]]
    assert len(drawn) == 512
    for row in (0, 63, 64, 511):
        from_file = preprocess(png(pictures()[0][indices[row]]), PREPROCESS)
        np.testing.assert_array_equal(drawn[row], from_file)


def test_golden_pictures_hold_each_digit_once() -> None:
    assert DEFINITION.held_out is not None
    held_out = DEFINITION.held_out()
    unseen = {
        array.tobytes(): int(label)
        for array, label in zip(held_out.inputs["image"], held_out.labels, strict=True)
    }
    golden = [item["image"].tobytes() for item in DEFINITION.golden_inputs()]
    assert [unseen[each] for each in golden] == list(range(10))


def test_accuracy_on_held_out_pictures(manifest: Manifest) -> None:
    assert manifest.accuracy is not None
    assert manifest.accuracy >= 0.97
    assert manifest.variants["script"].accuracy == pytest.approx(manifest.accuracy, abs=0.003)


def test_each_variant_loses_at_most_half_a_point(manifest: Manifest) -> None:
    assert manifest.accuracy is not None
    assert {"script", "bf16", "int8"} <= set(manifest.variants)
    for variant in manifest.variants.values():
        assert variant.accuracy is not None
        assert variant.accuracy >= manifest.accuracy - 0.005 - 1e-9


def test_int8_takes_at_most_three_fifths_of_the_space(manifest: Manifest) -> None:
    assert manifest.files["int8.zip"].bytes <= 0.6 * manifest.files["script.pt"].bytes


def test_plan_covers_every_precision_and_batch_size(manifest: Manifest) -> None:
    assert manifest.plan is not None
    device = manifest.plan.on("cpu")
    assert device is not None
    assert manifest.plan.precision == "float32"
    assert set(device.steps) == {each.precision for each in manifest.variants.values()}
    largest = 64 if torch.cuda.is_available() else 8  # as the fixture asks for
    assert {steps[-1].up_to for steps in device.steps.values()} == {largest}


def test_most_golden_answers_name_their_digit(manifest: Manifest) -> None:
    answers = [int(each.outputs["scores"].array().argmax()) for each in manifest.golden]
    assert sum(answer == digit for digit, answer in enumerate(answers)) >= 9
    assert len(answers) == 10


class Enough(Exception):
    """Ends a training after a few steps, from its progress."""


def test_training_reports_progress_and_is_reproducible() -> None:
    runs = []
    for _ in range(2):
        told: list[tuple[int, int, str]] = []

        def progress(
            done: int, total: int, note: str, told: list[tuple[int, int, str]] = told
        ) -> None:
            told.append((done, total, note))
            if done == 3:
                raise Enough

        module = DEFINITION.build()
        assert DEFINITION.train is not None
        with pytest.raises(Enough):
            DEFINITION.train(module, progress)
        assert [done for done, _, _ in told] == [1, 2, 3]
        runs.append((told, [each.tolist() for each in module.parameters()]))
    assert runs[0] == runs[1]
