"""The detector of shapes: what it finds, and how that is judged."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from app.codecs.places import Places
from export.proving import forwards, verify
from models.definitions import shapes
from models.definitions.shapes import DEFINITION, ROWS, average_precision
from models.places import Geometry
from models.runtimes.forms import intra_op_threads
from models.tensors import Array, Arrays
from tests.unit.export.definitions import quiet
from tests.unit.models.manifests import make_manifest


def found(*rows: tuple[float, ...]) -> Arrays:
    """Rows of class, box and score in one picture."""
    filled = np.zeros((1, ROWS, 6), np.float32)
    for at, row in enumerate(rows):
        filled[0, at] = row
    return {
        "classes": filled[:, :, 0].astype(np.int64),
        "boxes": filled[:, :, 1:5],
        "scores": filled[:, :, 5],
        "found": np.array([len(rows)]),
    }


def truth(*rows: tuple[float, ...]) -> Array:
    filled = np.full((1, 4, 5), -1, np.float32)
    filled[0, : len(rows)] = rows
    return filled


ONE_EACH = truth((0, 0, 0, 10, 10), (1, 20, 20, 30, 30), (2, 40, 40, 50, 50))
RIGHT = ((0, 0, 0, 10, 10, 0.9), (1, 20, 20, 30, 30, 0.8), (2, 41, 40, 51, 50, 0.7))


class TestAveragePrecision:
    @pytest.mark.parametrize(
        ("rows", "precision"),
        [
            (RIGHT, 1),
            (RIGHT[:1], 1 / 3),
            ((), 0),
            (((1, 0, 0, 10, 10, 0.9), (0, 20, 20, 30, 30, 0.8), (2, 47, 40, 57, 50, 0.7)), 0),
        ],
        ids=["all", "one of three", "none", "wrong"],
    )
    def test_of_right_and_wrong_boxes(
        self, rows: tuple[tuple[float, ...], ...], precision: float
    ) -> None:
        assert average_precision(found(*rows), ONE_EACH) == pytest.approx(precision)

    def test_only_a_higher_scoring_duplicate_costs_precision(self) -> None:
        twice = truth((0, 0, 0, 10, 10), (0, 40, 40, 50, 50))
        rest = (RIGHT[0], (0, 40, 40, 50, 50, 0.5))
        after = average_precision(found(*rest, (0, 0, 0, 10, 10, 0.1)), twice)
        between = average_precision(found(*rest, (0, 0, 0, 10, 10, 0.7)), twice)
        assert after == pytest.approx(1 / 3)
        assert between == pytest.approx((1 + 2 / 3) / 2 / 3)


def test_pictures_are_reproducible_with_shapes_inside() -> None:
    one, other = (shapes.pictures(np.random.default_rng(5), 20) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    images, where = one
    assert images.shape == (20, 1, 64, 64)
    real = where[where[:, :, 0] >= 0]
    assert set(real[:, 0]) == {0, 1, 2}
    assert real[:, 1:].min() >= 0
    assert real[:, 1:].max() < 64


def test_answers_have_boxes_in_the_callers_picture() -> None:
    """Of 128x64 pixels, of which the model sees half, between borders."""
    places = Places(make_manifest(DEFINITION.inputs, DEFINITION.outputs, codec=DEFINITION.codec))
    outputs = {name: array[0] for name, array in found((0, 8, 20, 16, 30, 0.9)).items()}
    mapped = places.mapped(outputs, Geometry(128, 64, (0.5, 0.5), (0.0, 16.0)))
    assert mapped["boxes"][0].tolist() == [16, 8, 32, 28]


def test_rows_beyond_the_count_are_0() -> None:
    torch.manual_seed(3)
    pictures = DEFINITION.random_inputs(np.random.default_rng(3), 8)
    outputs = forwards.run(DEFINITION.build(), DEFINITION, pictures)
    assert outputs["found"].max() <= ROWS
    for index, count in enumerate(outputs["found"].tolist()):
        for name in ("boxes", "scores", "classes"):
            assert not outputs[name][index, count:].any()
        assert (outputs["scores"][index, :count] > shapes.LEAST_SCORE).all()


def test_one_epoch_finds_some_shapes() -> None:
    """It ends at 0.19, the whole training at 0.998."""
    short = dataclasses.replace(shapes.TRAINING, epochs=1)
    module = DEFINITION.build()
    assert DEFINITION.held_out is not None
    with intra_op_threads(1):  # small batches: on a busy machine two threads wait for each other
        short.fit(module, quiet)
        assert verify.accuracy(module, DEFINITION, DEFINITION.held_out()) > 0.1
