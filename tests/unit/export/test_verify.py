"""Parity: measured over every batch size and golden example, and refused at the first breach."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from export import verify
from export.errors import ExportError, ParityError
from export.variants.base import TOLERANCES
from models.definitions.definition import Definition, HeldOut
from models.manifest import Parity
from models.tensors import Arrays, Tolerance
from tests.unit.export.definitions import CATALOG, MIXED, definition, quiet
from tests.unit.models.manifests import spec

Forward = Callable[..., object]
TINY = CATALOG["tiny"]
FLOAT32 = TOLERANCES["float32"]


def eager(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def check(
    exported: Forward,
    model: Definition = TINY,
    ours: Forward = eager,
    *,
    max_batch: int = 64,
    tolerance: Tolerance = FLOAT32,
) -> Parity:
    against = verify.reference(ours, model, max_batch, quiet)
    return verify.check_parity(exported, against, tolerance, quiet)


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

    def test_of_every_output_by_itself(self) -> None:
        model = definition(outputs=(spec("y", shape=(-1, 2)), spec("sum", shape=(-1,))))

        def ours(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x, x.sum(1)

        found = check(lambda x: (x, x.sum(1) + 1e-5), model, ours).outputs
        assert (found["y"].max_absolute, found["y"].max_relative) == (0, 0)
        assert found["sum"].max_absolute == pytest.approx(1e-5, rel=0.1)
        with pytest.raises(ParityError, match="golden example 0: output 'sum' differs by up to 1 "):
            check(lambda x: (x, x.sum(1) + 1), model, ours)

    def test_integers_are_compared_as_well(self) -> None:
        def ours(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, index + 1

        assert check(ours, MIXED, ours).outputs["next"].max_absolute == 0
        with pytest.raises(ParityError, match="output 'next' differs by up to 1 "):
            check(lambda x, index: (x, index + 2), MIXED, ours)

    def test_the_difference_between_alone_and_in_a_batch_is_measured(self) -> None:
        parity = check(lambda x: x * 2 + (1e-5 if len(x) == 64 else 0))
        assert parity.batch_invariance == pytest.approx(1e-5, rel=0.05)

    def test_an_answer_whose_shape_depends_on_its_neighbours(self) -> None:
        model = definition(outputs=(spec("y", shape=(-1, -1)),))

        def widest(x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), len(x))

        message = r"batch 2: output 'y' of the last item is \[1, 1\] alone and \[1, 2\] in its"
        with pytest.raises(ParityError, match=message):
            check(widest, model, widest, max_batch=2)

    @pytest.mark.parametrize("size", [2, 33, 64])
    def test_no_batch_size_is_left_out(self, size: int) -> None:
        message = f"random inputs, batch {size}: output 'y' differs by up to 0.01"
        with pytest.raises(ParityError, match=message):
            check(lambda x: x * 2 + (0.01 if len(x) == size else 0))

    def test_no_row_is_left_out(self) -> None:
        def last_row(x: torch.Tensor) -> torch.Tensor:
            return x * 2 + (torch.arange(len(x))[:, None] == 6) * 0.01

        with pytest.raises(ParityError, match="random inputs, batch 7: output 'y' differs"):
            check(last_row)

    def test_golden_examples_are_checked(self) -> None:
        with pytest.raises(ParityError, match="golden example 1: output 'y'"):
            check(lambda x: torch.where(x < 0, x, x * 2))

    def test_what_the_tolerance_allows_is_by_the_item(self) -> None:
        """A large item in the batch excuses no small one."""
        sizes = definition(
            random_inputs=lambda rng, batch: {
                "x": np.where(np.arange(batch)[:, None] == 0, 1000, 1)
                .repeat(2, 1)
                .astype("float32")
            },
            golden_inputs=lambda: [{"x": np.full(2, 1000, np.float32)}],
        )
        loose = Tolerance(absolute=0, relative=0, of_range=0.1)
        assert check(lambda x: x * 2.1, sizes, max_batch=3, tolerance=loose).max_absolute > 99
        with pytest.raises(ParityError, match="batch 2: output 'y' differs by up to 1 "):
            check(lambda x: x * 2 + (x == 1), sizes, max_batch=3, tolerance=loose)

    def test_nan_on_the_exported_side(self) -> None:
        with pytest.raises(ParityError, match="example 0: output 'y' is not finite, eager's is"):
            check(lambda x: x * float("nan"), tolerance=TOLERANCES["int8"])

    def test_it_tells_how_far_it_is(self) -> None:
        told: list[tuple[int, int, str]] = []
        against = verify.reference(eager, TINY, 3, quiet)
        verify.check_parity(
            lambda x: x * 2 + 1e-6,
            against,
            FLOAT32,
            lambda done, total, note: told.append((done, total, note)),
        )
        assert [(done, total) for done, total, _ in told] == [(n, 5) for n in range(1, 6)]
        assert told[-1][2].startswith("largest difference ")


class TestReference:
    def test_it_tells_how_far_it_is(self) -> None:
        told: list[tuple[int, int, str]] = []
        verify.reference(eager, TINY, 3, lambda *each: told.append(each))
        assert told == [(2, 3, "batch 2"), (3, 3, "batch 3")]

    @pytest.mark.parametrize("budget", ["EVERY_SIZE_BUDGET_S", "EVERY_SIZE_BUDGET_BYTES"])
    @pytest.mark.parametrize(
        ("max_batch", "sizes"),
        [
            (1, (1,)),
            (6, (1, 2, 3, 4, 5, 6)),
            (64, (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64)),
            (100, (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100)),
        ],
    )
    def test_beyond_the_budget_only_sizes_around_powers_of_two(
        self, monkeypatch: pytest.MonkeyPatch, budget: str, max_batch: int, sizes: tuple[int, ...]
    ) -> None:
        monkeypatch.setattr(verify, budget, 0)
        assert check(eager, max_batch=max_batch).batch_sizes == sizes

    def test_nan_of_eager_proves_nothing(self) -> None:
        with pytest.raises(ParityError, match="eager model's output 'y' is not finite; nothing"):
            verify.reference(lambda x: x / 0, TINY, 2, quiet)

    def test_nan_at_one_batch_size(self) -> None:
        with pytest.raises(ParityError, match="random inputs, batch 3: the eager model's output"):
            verify.reference(lambda x: x / (len(x) - 3), TINY, 4, quiet)

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({"z": np.ones((1, 2), np.float32)}, r"gives \['z'\], it declares \['x'\]"),
            ({}, r"gives \[\], it declares \['x'\]"),
            (
                {"x": np.ones((1, 2))},
                r"gives 'x' as float64\[1, 2\] for a batch of 1, it declares float32\[-1, 2\]$",
            ),
            ({"x": np.ones((1, 3), np.float32)}, r"gives 'x' as float32\[1, 3\] for a batch of 1"),
            ({"x": np.ones((2, 2), np.float32)}, r"gives 'x' as float32\[2, 2\] for a batch of 1"),
        ],
    )
    def test_inputs_that_were_not_declared(self, inputs: Arrays, message: str) -> None:
        model = definition(random_inputs=lambda rng, batch: inputs)
        with pytest.raises(ExportError, match=f"^random inputs, batch 1: the definition {message}"):
            verify.reference(eager, model, 2, quiet)

    def test_golden_inputs_that_were_not_declared(self) -> None:
        model = definition(golden_inputs=lambda: [{"x": np.ones(3, np.float32)}])
        with pytest.raises(ExportError, match="golden example 0: the definition gives 'x' as"):
            verify.reference(eager, model, 2, quiet)

    def test_a_free_dimension_larger_than_it_may_be(self) -> None:
        model = definition(
            inputs=(spec("x", shape=(-1, -1)).model_copy(update={"free_max": 1}),),
            golden_inputs=list,
        )
        with pytest.raises(ExportError, match=r"it declares float32\[-1, -1\] of up to 1$"):
            verify.reference(eager, model, 2, quiet)


ONES = {"x": np.ones((3, 2), np.float32)}


class TestRun:
    def test_outputs_by_name(self) -> None:
        model = definition(outputs=(spec("y", shape=(-1, 2)), spec("z", shape=(-1,))))
        for made in (lambda x: (x, x.sum(dim=1)), lambda x: [x, x.sum(dim=1)]):
            found = verify.run(made, model, ONES)
            assert {name: array.tolist() for name, array in found.items()} == {
                "y": [[1, 1]] * 3,
                "z": [2] * 3,
            }

    def test_inputs_in_the_order_of_the_definition(self) -> None:
        inputs: Arrays = {"index": np.zeros(1, np.int64), "x": np.ones((1, 2), np.float32)}
        found = verify.run(lambda x, index: (x, index), MIXED, inputs)
        assert found["row"].tolist() == [[1, 1]]

    @pytest.mark.parametrize(
        ("forward", "message"),
        [
            (lambda x: (x, x), "^the model gave 2 outputs, 1 are declared$"),
            (lambda x: (), "^the model gave 0 outputs, 1 are declared$"),
            (lambda x: {"y": x}, r"^the model gives a dict; it must give a tensor, or a tuple of"),
            (lambda x: None, r"^the model gives a NoneType; it must give a tensor"),
            (lambda x: ("y",), "^output 'y' is no tensor but str$"),
            (lambda x: x.double(), r"^output 'y' is torch\.float64, not float32$"),
            (lambda x: x.sum(dim=1), r"is float32\[3\] for a batch of 3, declared as float32\[-1,"),
            (lambda x: x[:2], r"is float32\[2, 2\] for a batch of 3, declared as float32\[-1, 2\]"),
            (lambda x: x.reshape(4, 4), r"^the model fails on x \[3, 2\]: shape '\[4, 4\]'"),
            (lambda x: {"x": x}["y"], r"^the model fails on x \[3, 2\]: KeyError: 'y'$"),
        ],
    )
    def test_outputs_that_were_not_declared(self, forward: Forward, message: str) -> None:
        with pytest.raises(ParityError, match=message):
            verify.run(forward, TINY, ONES)

    def test_the_inputs_are_left_alone(self) -> None:
        verify.run(lambda x: x.mul_(5), TINY, ONES)
        assert ONES["x"].max() == 1


class TestAccuracy:
    def test_it_is_the_share_of_right_winners(self) -> None:
        inputs = np.array([[1, 0], [0, 1], [5, 3], [2, 9]], np.float32)
        held_out = HeldOut({"x": inputs}, np.array([0, 1, 1, 1]))
        assert verify.accuracy(eager, TINY, held_out) == 0.75

    @pytest.mark.parametrize("count", [1, 64, 65, 200])
    def test_every_item_counts_however_many_there_are(self, count: int) -> None:
        labels = np.arange(count) % 2
        inputs = np.eye(2, dtype=np.float32)[labels]
        assert verify.accuracy(eager, TINY, HeldOut({"x": inputs}, labels)) == 1
        labels[-1] = 1 - labels[-1]
        wrong = verify.accuracy(eager, TINY, HeldOut({"x": inputs}, labels))
        assert wrong == pytest.approx(1 - 1 / count)

    def test_an_empty_set_is_a_mistake(self) -> None:
        empty = HeldOut({"x": np.zeros((0, 2), np.float32)}, np.zeros(0, int))
        with pytest.raises(ExportError, match="the held-out set is empty"):
            verify.accuracy(eager, TINY, empty)

    def test_scores_that_are_not_finite_win_nothing(self) -> None:
        held_out = HeldOut({"x": np.zeros((2, 2), np.float32)}, np.zeros(2, int))
        with pytest.raises(ParityError, match="held-out set: output 'y' is not finite"):
            verify.accuracy(lambda x: x / 0, TINY, held_out)
