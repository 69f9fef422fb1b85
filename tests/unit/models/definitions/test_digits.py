"""The digits model: its shape, its data, and what the exported artifact achieved on unseen ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.definitions.digits import DEFINITION, PREPROCESS, pictures, png, split
from models.inputs.preprocess import preprocess
from models.manifest import Manifest


@pytest.fixture(scope="module")
def manifest(repository: Path) -> Manifest:
    return Manifest.model_validate_json((repository / "digits/1/manifest.json").read_bytes())


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
