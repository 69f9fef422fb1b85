"""The eager reference, which must be finite and independent of the batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from export.errors import ExportError, ParityError
from export.probing.samples import Samples
from export.proving import reference
from export.proving.reference import reference_of
from models.tensors import Arrays, Dimension
from tests.unit.export.definitions import CATALOG, definition, quiet
from tests.unit.models.manifests import spec

Forward = Callable[..., object]
TINY = CATALOG["tiny"]


def eager(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class TestReference:
    @pytest.mark.parametrize("budget", ["BUDGET_S", "BUDGET_BYTES"])
    @pytest.mark.parametrize(
        ("max_batch", "sizes"),
        [
            (6, (1, 2, 3, 4, 5, 6)),
            (100, (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100)),
        ],
    )
    def test_thorough_proofs_have_sizes_around_powers_of_two(
        self, monkeypatch: pytest.MonkeyPatch, budget: str, max_batch: int, sizes: tuple[int, ...]
    ) -> None:
        monkeypatch.setattr(reference, budget, 0)
        monkeypatch.setattr(reference, "THOROUGH_S", 0)
        found = reference_of(eager, TINY, max_batch, quiet, thorough=True)
        assert found.batch_sizes == sizes

    def test_the_budget_leaves_the_sizes_that_it_pays_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def sizes(max_batch: int, budget_bytes: float) -> tuple[int, ...]:
            monkeypatch.setattr(reference, "BUDGET_BYTES", budget_bytes)
            return reference_of(eager, TINY, max_batch, quiet).batch_sizes

        item = 2 * 2 * 4  # an input and an output of two numbers
        around = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64}
        assert sizes(64, item * sum(range(65))) == tuple(range(1, 65))
        assert set(sizes(64, item * sum(around))) == around
        fewest = sizes(64, item * sum(around) - 1)
        assert (fewest[:2], fewest[-1]) == ((1, 2), 64)
        assert all(2 < size <= 16 for size in fewest[2:-1])
        assert len(fewest[2:-1]) == 2
        assert [sizes(most, 0) for most in (1, 2, 3)] == [(1,), (1, 2), (1, 2, 3)]
        assert sizes(5, 0) == (1, 2, 3, 4, 5)

    @pytest.mark.parametrize(
        ("one_s", "largest"), [(0.0, 64), (0.06, 64), (0.07, 32), (0.4, 8), (1.9, 2), (60.0, 2)]
    )
    def test_the_largest_batch_takes_a_caller_few_seconds(
        self, monkeypatch: pytest.MonkeyPatch, one_s: float, largest: int
    ) -> None:
        now = itertools.count(0, one_s)  # read before and after each forward of one item
        monkeypatch.setattr("export.proving.reference.time.perf_counter", lambda: next(now))
        assert reference_of(eager, TINY, None, quiet).batch_sizes[-1] == largest
        thorough = reference_of(eager, TINY, None, quiet, thorough=True)
        assert thorough.batch_sizes[-1] == 64

    def test_nan_in_the_eager_model_is_rejected(self) -> None:
        with pytest.raises(ParityError, match="eager model's output 'y' is not finite, so nothing"):
            reference_of(lambda x: x / 0, TINY, 2, quiet)

    @pytest.mark.parametrize(
        "mixing",
        [
            lambda x: x * 2 + x.mean(),
            lambda x: (
                torch.nn.functional.batch_norm(x, None, None, training=True) if len(x) > 1 else x
            ),
        ],
    )
    def test_eager_model_that_mixes_items_is_rejected(self, mixing: Forward) -> None:
        message = (
            "^random inputs, batch 2: eager's output 'y' of the last item in its batch, .* must "
            r"not depend on what else is in its batch: call model\.eval\(\), and keep operations "
            r"off axis 0; a model that .* such as dynamic int8, .* works with --max-batch-size 1$"
        )
        with pytest.raises(ParityError, match=message):
            reference_of(mixing, TINY, 3, quiet)
        assert reference_of(mixing, TINY, 1, quiet).batch_sizes == (1,)

    @pytest.mark.parametrize(("biggest", "place"), [(0, "last"), (1, "first")])
    def test_one_scale_for_a_batch_of_two_is_rejected(self, biggest: int, place: str) -> None:
        """Only the item without the batch's largest number shows it."""

        def draw(_: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
            rows = np.full((batch, 2), 0.123, np.float32)
            rows[biggest if batch > 1 else 0] = 1
            return {"x": rows}

        def one_scale(x: torch.Tensor) -> torch.Tensor:
            scale = x.abs().max() / 127
            return (x / scale).round() * scale

        drawn = replace(TINY, random_inputs=draw)
        with pytest.raises(ParityError, match=f"of the {place} item in its batch, compared"):
            reference_of(one_scale, drawn, 2, quiet)

    def test_missing_numbers_are_replaced_without_a_look_at_other_items(self) -> None:
        inputs = (TINY.inputs[0].model_copy(update={"nan": True}),)
        samples = Samples(inputs, TINY.codec, ((inputs[0].item_shape,),))
        missing = replace(
            TINY,
            inputs=inputs,
            random_inputs=samples.random_inputs,
            golden_inputs=samples.golden_inputs,
        )
        reference_of(lambda x: x.nan_to_num(0.5), missing, 5, quiet)
        with pytest.raises(ParityError, match="must not depend on what else is in its batch"):
            reference_of(lambda x: torch.where(x.isnan(), x.nanmean(), x), missing, 5, quiet)

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({"z": np.ones((1, 2), np.float32)}, r"gives \['z'\], but declares \['x'\]"),
            (
                {"x": np.ones((1, 2))},
                r"gives 'x' as float64\[1, 2\] for a batch of 1, but declares x=float32\[-1,2\]$",
            ),
            ({"x": np.ones((1, 3), np.float32)}, r"gives 'x' as float32\[1, 3\] for a batch of 1"),
        ],
    )
    def test_undeclared_inputs_are_rejected(self, inputs: Arrays, message: str) -> None:
        model = definition(random_inputs=lambda rng, batch: inputs)
        with pytest.raises(ExportError, match=f"^random inputs, batch 1: the definition {message}"):
            reference_of(eager, model, 2, quiet)

    def test_excessive_free_dimension_is_rejected(self) -> None:
        model = definition(
            inputs=(
                spec("x", shape=(-1, -1)).model_copy(update={"dimensions": (Dimension(most=1),)}),
            ),
            golden_inputs=list,
        )
        with pytest.raises(ExportError, match=r"but declares x=float32\[-1,-1<=1\]$"):
            reference_of(eager, model, 2, quiet)
