"""Parity: measured over every batch size and golden example, and rejected at the first breach."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from export.errors import ExportError, ParityError
from export.proving import forwards, verify
from export.proving.reference import reference_of
from export.variants.base import TOLERANCES
from models.choices import Precision
from models.definitions.definition import Definition, HeldOut
from models.manifest import Parity
from models.tensors import Array, Arrays, Tolerance
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
    against = reference_of(ours, model, max_batch, quiet)
    return verify.check_parity(exported, against, tolerance, quiet)


def relative(parity: Parity) -> float:
    return max(each.max_relative for each in parity.outputs.values())


class TestParity:
    def test_differences_are_measured(self) -> None:
        parity = check(eager)
        assert parity.batch_sizes == tuple(range(1, 65))
        assert (parity.max_absolute, relative(parity), parity.batch_invariance) == (0, 0, 0)
        parity = check(lambda x: x * 2 * (1 + 1e-5))
        assert parity.max_absolute == pytest.approx(8e-5, rel=0.05)  # golden: 2 * 4
        assert relative(parity) == pytest.approx(1e-5, rel=0.05)

    def test_each_output_is_measured_separately(self) -> None:
        model = definition(outputs=(spec("y", shape=(-1, 2)), spec("sum", shape=(-1,))))

        def ours(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x, x.sum(1)

        parity = check(lambda x: (x, x.sum(1) + 1e-5), model, ours).outputs
        assert (parity["y"].max_absolute, parity["y"].max_relative) == (0, 0)
        assert parity["sum"].max_absolute == pytest.approx(1e-5, rel=0.1)
        with pytest.raises(ParityError, match="golden example 0: output 'sum' differs by up to 1 "):
            check(lambda x: (x, x.sum(1) + 1), model, ours)

    @pytest.mark.parametrize(
        ("shapes", "scale"),
        [
            ({"y": (-1,)}, 300.0),
            ({"y": (-1, 2)}, 1.0),  # has a range of its own
            ({"y": (-1,), "share": (-1, 2)}, 1.0),  # is small beside a large one
        ],
    )
    def test_a_single_number_is_compared_by_the_usual_size_of_its_output(
        self, shapes: dict[str, tuple[int, ...]], scale: float
    ) -> None:
        outputs = tuple(spec(name, shape=shape) for name, shape in shapes.items())
        model = definition(outputs=outputs, train=None, held_out=None)

        def ours(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            large = 300 + 0 * x
            return tuple(
                large[:, 0] if len(each.shape) == 1 else large if len(outputs) == 1 else 0 * x
                for each in outputs
            )

        assert reference_of(ours, model, 2, quiet).scale == scale

    def test_integers_are_compared(self) -> None:
        def ours(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, index + 1

        assert check(ours, MIXED, ours).outputs["next"].max_absolute == 0
        with pytest.raises(ParityError, match="output 'next' differs in 1 of 1 values"):
            check(lambda x, index: (x, index + 2), MIXED, ours)

    def test_shape_that_depends_on_the_batch_is_rejected(self) -> None:
        model = definition(outputs=(spec("y", shape=(-1, -1)),))

        def widest(x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), len(x))

        message = r"batch 2: eager's output 'y' of the last item .*shape \[2\] instead of \[1\]; an"
        with pytest.raises(ParityError, match=message):
            check(widest, model, widest, max_batch=2)

    def test_answer_that_depends_on_the_batch_is_rejected(self) -> None:
        """Off by 0.04 in a batch, and by 0.04 in the other direction alone."""

        def moody(x: torch.Tensor) -> torch.Tensor:
            return x * 2 + (0.04 if len(x) == 1 else -0.04)

        loose = Tolerance(absolute=0.05, relative=0)
        message = "^random inputs, batch 2: output 'y' of the last item in its batch, compared with"
        with pytest.raises(ParityError, match=message):
            check(moody, max_batch=2, tolerance=loose)
        allowed = check(moody, max_batch=2, tolerance=Tolerance(absolute=0.09, relative=0))
        assert allowed.batch_invariance == pytest.approx(0.08, rel=0.01)

    @pytest.mark.parametrize("precision", ["bf16", "int8"])
    def test_lossy_form_must_agree_with_itself(self, precision: Precision) -> None:
        tolerance = TOLERANCES[precision]

        def moody(x: torch.Tensor) -> torch.Tensor:
            return x * 2 * (1 + tolerance.of_range * (0.9 if len(x) == 1 else 0.1))

        message = "^random inputs, batch 2: output 'y' of the last item in its batch, compared with"
        with pytest.raises(ParityError, match=message):
            check(moody, max_batch=2, tolerance=tolerance)
        check(lambda x: x * 2 * (1 + 0.9 * tolerance.of_range), max_batch=2, tolerance=tolerance)

    def test_near_ties_pass_in_lossy_precisions(self) -> None:
        """An index of two nearly equal scores; accuracy shows the cost of the other one."""
        model = definition(outputs=(spec("index", "int64", (-1,)),))

        def ours(x: torch.Tensor) -> torch.Tensor:
            return x.argmax(1)

        for precision in ("bf16", "fp16", "int8"):
            check(lambda x: 1 - x.argmax(1), model, ours, tolerance=TOLERANCES[precision])
        with pytest.raises(ParityError, match="output 'index' differs in 1 of 1 values"):
            check(lambda x: 1 - x.argmax(1), model, ours)

    def test_few_of_many_indices_may_change_where_scores_tie(self) -> None:
        model = definition(outputs=(spec("class", "int64", (-1, 20000)),))

        def classes(x: torch.Tensor, others: int = 0) -> torch.Tensor:
            result = torch.zeros((len(x), 20000), dtype=torch.int64)
            result[:, :others] = 5
            return result

        check(lambda x: classes(x, 2), model, classes, max_batch=2)  # of 20,000, one in 10,000
        with pytest.raises(ParityError) as excinfo:
            check(lambda x: classes(x, 3), model, classes, max_batch=2)
        assert str(excinfo.value) == (
            "golden example 0: output 'class' differs in 3 of 20000 values, of which 2 may differ; "
            "if these are indices of the largest of scores that tie, return the scores too, or "
            "allow a larger share with --integer-share"
        )
        with pytest.raises(ParityError, match="of scores that tie, return the scores too, or"):
            check(classes, model, lambda x: classes(x, 9 * (len(x) > 1)), max_batch=2)

    @pytest.mark.parametrize(
        ("real_inputs", "advice"),
        [("", "noise: give real inputs with --examples"), ("6 items", "or return fewer rows")],
    )
    def test_rows_that_differ_come_with_advice(self, real_inputs: str, advice: str) -> None:
        boxes = spec("boxes", shape=(-1, 2)).model_copy(update={"count": "count"})
        counted = (boxes, spec("count", "int64", (-1,)))
        model = definition(outputs=counted, real_inputs=real_inputs)

        def found(x: torch.Tensor, at: int = 0) -> tuple[torch.Tensor, ...]:
            return x.roll(at, 1), torch.full((len(x),), 2 - at)

        with pytest.raises(ParityError, match=f"'boxes' differs .*; which rows .*{advice}$"):
            check(lambda x: found(x, 1), model, found)
        with pytest.raises(ParityError, match=f"'count' differs .*; which rows .*{advice}$"):
            check(lambda x: (x, found(x, 1)[1]), model, found)
        with pytest.raises(ParityError, match=f"'boxes' of .*: which rows .*{advice}; else call"):
            check(found, model, lambda x: found(x, int(len(x) > 1)))

    @pytest.mark.parametrize("size", [2, 33, 64])
    def test_every_batch_size_is_checked(self, size: int) -> None:
        message = f"random inputs, batch {size}: output 'y' differs by up to 0.01"
        with pytest.raises(ParityError, match=message):
            check(lambda x: x * 2 + (0.01 if len(x) == size else 0))

    def test_golden_examples_are_checked(self) -> None:
        with pytest.raises(ParityError, match="golden example 1: output 'y'"):
            check(lambda x: torch.where(x < 0, x, x * 2))

    def test_tolerance_applies_per_item(self) -> None:
        """A large item in the batch does not excuse a small one."""
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

    def test_nan_in_the_exported_model_is_rejected(self) -> None:
        with pytest.raises(ParityError, match="example 0: output 'y' is not finite, eager's is"):
            check(lambda x: x * float("nan"), tolerance=TOLERANCES["int8"])


class TestAgree:
    @pytest.mark.parametrize(("error", "same"), [(0, True), (1e-5, True), (1e-3, False)])
    def test_two_forms_are_compared_with_each_other(self, error: float, same: bool) -> None:
        against = reference_of(eager, TINY, 3, quiet)
        for third in (lambda x: x * 2 + error * (len(x) == 3), lambda x: x * 2 + error * (x == -1)):
            assert verify.agree(eager, third, against, FLOAT32) is same


ONES = {"x": np.ones((3, 2), np.float32)}


class TestRun:
    def test_outputs_by_name(self) -> None:
        model = definition(outputs=(spec("y", shape=(-1, 2)), spec("z", shape=(-1,))))
        for result in (lambda x: (x, x.sum(dim=1)), lambda x: [x, x.sum(dim=1)]):
            found = forwards.run(result, model, ONES)
            assert {name: array.tolist() for name, array in found.items()} == {
                "y": [[1, 1]] * 3,
                "z": [2] * 3,
            }

    @pytest.mark.parametrize(
        ("forward", "message"),
        [
            (lambda x: (x, x), "^the model returned 2 outputs, but 1 are declared$"),
            (lambda x: {"y": x}, "^the model returns a dict; it must return a tensor, or a tuple"),
            (lambda x: None, r"^the model returns a NoneType; it must return a tensor"),
            (lambda x: ("y",), "^output 'y' is not a tensor but str$"),
            (lambda x: x.double(), r"^output 'y' is torch\.float64, not float32$"),
            (lambda x: x[:2], r"is float32\[2, 2\] for a batch of 3, declared as float32\[-1, 2\]"),
            (lambda x: x.reshape(4, 4), r"^the model fails on x \[3, 2\]: shape '\[4, 4\]'"),
        ],
    )
    def test_undeclared_outputs_are_rejected(self, forward: Forward, message: str) -> None:
        with pytest.raises(ParityError, match=message):
            forwards.run(forward, TINY, ONES)

    def test_inputs_are_not_modified(self) -> None:
        forwards.run(lambda x: x.mul_(5), TINY, ONES)
        assert ONES["x"].max() == 1


class TestAccuracy:
    @pytest.mark.parametrize("count", [1, 64, 65, 200])
    def test_every_item_counts(self, count: int) -> None:
        labels = np.arange(count) % 2
        inputs = np.eye(2, dtype=np.float32)[labels]
        assert verify.accuracy(eager, TINY, HeldOut({"x": inputs}, labels)) == 1
        labels[-1] = 1 - labels[-1]
        wrong = verify.accuracy(eager, TINY, HeldOut({"x": inputs}, labels))
        assert wrong == pytest.approx(1 - 1 / count)

    def test_held_out_set_may_have_its_own_score(self) -> None:
        inputs = np.arange(140, dtype=np.float32).reshape(70, 2)

        def score(outputs: Arrays, labels: Array) -> float:
            assert outputs["y"].tolist() == (2 * inputs).tolist()
            return float(labels.mean())

        held_out = HeldOut({"x": inputs}, np.full(70, 0.25), score)
        assert verify.accuracy(eager, TINY, held_out) == 0.25

    def test_empty_held_out_set_is_an_error(self) -> None:
        empty = HeldOut({"x": np.zeros((0, 2), np.float32)}, np.zeros(0, int))
        with pytest.raises(ExportError, match="the held-out set is empty"):
            verify.accuracy(eager, TINY, empty)

    def test_non_finite_scores_are_rejected(self) -> None:
        held_out = HeldOut({"x": np.zeros((2, 2), np.float32)}, np.zeros(2, int))
        with pytest.raises(ParityError, match="held-out set: output 'y' is not finite"):
            verify.accuracy(lambda x: x / 0, TINY, held_out)
