"""Parity: measured over every batch size and golden example, and refused at the first breach."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from export import verify
from export.errors import ParityError
from models.definitions.definition import Definition, HeldOut
from models.manifest import Parity
from tests.unit.export.definitions import CATALOG, definition
from tests.unit.models.manifests import spec

Forward = Callable[[torch.Tensor], object]


def eager(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def check(exported: Forward, model: Definition = CATALOG["tiny"], ours: Forward = eager) -> Parity:
    return verify.check_parity(ours, exported, model, lambda done, total, note: None)


def relative(parity: Parity) -> float:
    return max(each.max_relative for each in parity.outputs.values())


class TestParity:
    def test_the_same_answers(self) -> None:
        parity = check(eager)
        assert parity.batch_sizes == tuple(range(1, 65))
        assert (parity.max_absolute, relative(parity), parity.batch_invariance) == (0, 0, 0)

    def test_small_differences_are_measured(self) -> None:
        parity = check(lambda x: x * 2 * (1 + 1e-5))
        assert parity.max_absolute == pytest.approx(8e-5, rel=0.05)  # golden: 2 * 4
        assert relative(parity) == pytest.approx(1e-5, rel=0.05)

    def test_the_difference_between_alone_and_in_a_batch_is_measured(self) -> None:
        parity = check(lambda x: x * 2 + (1e-5 if len(x) == 64 else 0))
        assert parity.batch_invariance == pytest.approx(1e-5, rel=0.05)

    @pytest.mark.parametrize("size", [1, 2, 33, 64])
    def test_no_batch_size_is_left_out(self, size: int) -> None:
        message = f"random inputs, batch {size}: output 'y' differs by up to 0.01"
        with pytest.raises(ParityError, match=message):
            check(lambda x: x * 2 + (0.01 if len(x) == size else 0))

    def test_golden_examples_are_checked(self) -> None:
        with pytest.raises(ParityError, match="golden example 1: output 'y'"):
            check(lambda x: torch.where(x < 0, x, x * 2))

    def test_nan_on_both_sides_is_no_parity(self) -> None:
        def not_finite(x: torch.Tensor) -> torch.Tensor:
            return x / 0

        with pytest.raises(ParityError, match="eager model's output 'y' is not finite"):
            check(not_finite, ours=not_finite)

    def test_nan_on_the_exported_side(self) -> None:
        with pytest.raises(ParityError, match="differs by up to nan"):
            check(lambda x: x * float("nan"))


ONES = {"x": np.ones((3, 2), np.float32)}


class TestRun:
    def test_outputs_by_name(self) -> None:
        model = definition(outputs=(spec("y", shape=(-1, 2)), spec("z", shape=(-1,))))
        made = verify.run(lambda x: (x, x.sum(dim=1)), model, ONES)
        assert {name: array.tolist() for name, array in made.items()} == {
            "y": [[1, 1]] * 3,
            "z": [2] * 3,
        }

    @pytest.mark.parametrize(
        ("forward", "message"),
        [
            (lambda x: (x, x), "2 outputs made, 1 declared"),
            (lambda x: (), "0 outputs made, 1 declared"),
            (lambda x: x.double(), r"is float64\[3, 2\], declared as float32\[-1, 2\]"),
            (lambda x: x.sum(dim=1), r"is float32\[3\], declared as float32\[-1, 2\]"),
            (lambda x: x.reshape(4, 4), r"the model fails on x \[3, 2\]: shape '\[4, 4\]'"),
        ],
    )
    def test_outputs_that_were_not_declared(self, forward: Forward, message: str) -> None:
        with pytest.raises(ParityError, match=message):
            verify.run(forward, CATALOG["tiny"], ONES)

    def test_the_inputs_are_left_alone(self) -> None:
        verify.run(lambda x: x.mul_(5), CATALOG["tiny"], ONES)
        assert ONES["x"].max() == 1


def test_accuracy_is_the_share_of_right_winners() -> None:
    inputs = np.array([[1, 0], [0, 1], [5, 3], [2, 9]], np.float32)
    held_out = HeldOut({"x": inputs}, np.array([0, 1, 1, 1]))
    assert verify.accuracy(eager, CATALOG["tiny"], held_out) == 0.75


def test_items_become_one_batch() -> None:
    items = [{"a": np.zeros(2), "b": np.array(1)}, {"a": np.ones(2), "b": np.array(2)}]
    batch = verify.one_batch(items)
    assert {name: array.tolist() for name, array in batch.items()} == {
        "a": [[0, 0], [1, 1]],
        "b": [1, 2],
    }
