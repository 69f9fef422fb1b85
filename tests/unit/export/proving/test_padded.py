"""Padding is proved: of eager first, then of each form; a model that depends on it is rejected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._jit_internal import is_scripting

from export.errors import ExportError, ParityError, UsageError
from export.proving import padded, verify
from export.proving.prove import ProofOptions, prove_variants
from export.proving.reference import ParityReference, reference_of
from export.variants.base import TOLERANCES
from models.definitions.definition import Definition
from models.padding import padding_of
from models.tensors import Arrays, Dimension, TensorSpec
from tests.unit.export.definitions import definition, quiet, subject
from tests.unit.export.kinds import PaddedGraph, Pooled
from tests.unit.export.torchscripts import run, scripted, written
from tests.unit.models.manifests import spec

SEQ = Dimension(name="seq", least=1, most=40, mask="mask")


class MaskedMean(nn.Module):
    """ids [n, seq] and mask [n, seq] -> y [n, 2], the mean of vectors where the mask is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = mask.to(torch.float32).unsqueeze(-1)
        output: torch.Tensor = (self.table(ids) * weights).sum(1) / weights.sum(1)
        return output


class PlainMean(MaskedMean):
    """The mean over all places, whatever the mask says."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.table(ids).mean(1) + 0 * mask.sum(1, keepdim=True)
        return output


class EachToken(MaskedMean):
    """A vector for each token, y [n, seq, 2]."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.table(ids) * mask.to(torch.float32).unsqueeze(-1)
        return output


class Counting(MaskedMean):
    """Counts padded places as soon as it is scripted."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = mask.to(torch.float32).unsqueeze(-1)
        if is_scripting():
            weights = torch.ones_like(weights)
        output: torch.Tensor = (self.table(ids) * weights).sum(1) / weights.sum(1)
        return output


def drawn(rng: np.random.Generator, batch: int) -> Arrays:
    shape = (batch, int(rng.integers(1, 6)))
    return {"ids": rng.integers(0, 30, shape), "mask": np.ones(shape, np.int64)}


def texts(
    module: Callable[[], nn.Module] = MaskedMean, seq: Dimension = SEQ, **changes: Any
) -> Definition:
    fields: dict[str, Any] = {
        "inputs": tuple(
            TensorSpec(name=name, dtype="int64", shape=(-1, -1), dimensions=(seq,))
            for name in ("ids", "mask")
        ),
        "train": None,
        "random_inputs": drawn,
        "golden_inputs": lambda: [
            {"ids": np.array([3, 1, 4]), "mask": np.ones(3, np.int64)},
        ],
        "example": lambda: {"ids": [3], "mask": [1]},
        "held_out": None,
    }
    return definition(module, **(fields | changes))


def reference(model: Definition, max_batch: int = 4) -> ParityReference:
    return reference_of(subject(model).eager, model, max_batch, quiet)


class TestEager:
    def test_padded_batches_cover_all_sizes(self) -> None:
        batches = reference(texts(), max_batch=3).padded
        assert [batch.to for batch in batches] == [2, 4, 8, 16, 32, 40]
        sizes = [sorted(len(item["ids"]) for item in batch.items) for batch in batches]
        assert sizes == [[1, 2], [1, 2, 4], [1, 3, 8], [1, 4, 16], [1, 6, 32], [1, 6, 40]]

    def test_model_that_depends_on_padding_is_rejected(self) -> None:
        message = (
            r"^eager's output 'y' of an item of seq \d+, padded to \d+: differs by up to [\d.]+ "
            r"\(allowed: .*\): the model does not respect 'mask'; remove the mask from the "
            "declaration, then only items of equal size share a batch$"
        )
        with pytest.raises(ParityError, match=message):
            reference(texts(PlainMean))

    def test_single_size_is_never_padded(self) -> None:
        fixed = Dimension(name="seq", least=3, most=3, mask="mask")

        def of_three(rng: np.random.Generator, batch: int) -> Arrays:
            return {"ids": rng.integers(0, 30, (batch, 3)), "mask": np.ones((batch, 3), np.int64)}

        assert reference(texts(seq=fixed, random_inputs=of_three)).padded == ()

    def test_intermediate_sizes_are_skipped_over_budget(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(padded, "BUDGET_S", 0)
        smallest, largest = reference(texts()).padded
        assert (smallest.to, largest.to) == (2, 40)
        assert [len(item["ids"]) for item in largest.items] == [1, 40]

    def test_output_axis_with_the_items_size_is_trimmed(self) -> None:
        tokens = TensorSpec(name="y", dtype="float32", shape=(-1, -1, 2), dimensions=(SEQ,))
        batch = reference(texts(EachToken, outputs=(tokens,))).padded[-1]
        for item, expected in zip(batch.items, batch.expected, strict=True):
            assert expected["y"].shape == (len(item["ids"]), 2)

    def test_undeclared_output_axis_is_reported(self) -> None:
        message = r"padded to 40: shape \[40, 2\] instead of \[1, 2\]; if that axis has the item's"
        with pytest.raises(ParityError, match=message):
            reference(texts(EachToken, outputs=(spec("y", shape=(-1, -1, 2)),)))

    def test_contradictory_declaration_is_refused(self) -> None:
        message = "^the definition's padding: the padded 'seq' must have a least size of 1, not 0$"
        with pytest.raises(ExportError, match=message):
            reference(texts(seq=SEQ.model_copy(update={"least": 0})))


class TestForms:
    def test_each_form_records_its_padded_sizes(self, tmp_path: Path) -> None:
        options = ProofOptions(("script", "bf16"), max_batch=3)
        proof = prove_variants(subject(texts()), options, tmp_path, lambda name: quiet)
        for variant in proof.variants.values():
            assert variant.parity.padded_to == (2, 4, 8, 16, 32, 40)

    def test_a_form_that_depends_on_padding_is_rejected(self) -> None:
        model = texts(Counting)
        against = reference(model)
        scripted_form = torch.jit.script(subject(model).eager)
        message = r"^output 'y' of an item of seq \d+, padded to \d+: differs by up to"
        with pytest.raises(ParityError, match=message):
            verify.check_parity(scripted_form, against, TOLERANCES["float32"], quiet)


IDS = ("--input", "ids=int64[-1,seq<=16] in 0..29", "--input", "mask=int64[-1,seq]")


class TestAdopt:
    def test_the_mask_reaches_the_declaration(self, tmp_path: Path) -> None:
        file = written(tmp_path, scripted(EachToken()))
        adoption = run(file, "--name", "m", *IDS, "--pad", "seq=mask").definition
        padding = padding_of(adoption.inputs, adoption.outputs)
        assert padding is not None
        assert padding.dimension == Dimension(name="seq", least=1, most=16, mask="mask")
        assert adoption.outputs[0].dimensions == (padding.dimension,)
        rng = np.random.default_rng(0)
        assert adoption.random_inputs(rng, 4)["mask"].all()
        assert [each.to for each in reference(adoption).padded] == [2, 4, 8, 16]

    def test_padding_value_lies_in_the_range(self, tmp_path: Path) -> None:
        first = ("--input", "ids=int64[-1,seq<=16] in 5..29", *IDS[2:])
        file = written(tmp_path, scripted(MaskedMean()))
        adoption = run(file, "--name", "m", *first, "--pad", "seq=mask").definition
        assert [each.fill for each in adoption.inputs] == [5, 0]

    @pytest.mark.parametrize(
        ("module", "inputs", "pad", "shape"),
        [
            (Pooled(), ["x=float32[-1,t<=9,-1]", "mask=bool[-1,t]"], "t=mask", (-1, -1, 2)),
            (
                PaddedGraph(),
                ["x=float32[-1,n<=9,4]", "e=int64[-1,2,-1] in 0..<n", "mask=bool[-1,n]"],
                "n=mask",
                (-1, -1, 4),
            ),
        ],
    )
    def test_another_size_may_be_free(
        self, tmp_path: Path, module: nn.Module, inputs: list[str], pad: str, shape: tuple[int, ...]
    ) -> None:
        options = [word for each in inputs for word in ("--input", each)]
        file = written(tmp_path, scripted(module))
        adoption = run(file, "--name", "m", *options, "--pad", pad).definition
        assert [each.shape for each in adoption.outputs] == [shape]
        padding = padding_of(adoption.inputs, adoption.outputs)
        assert padding is not None
        assert padding.trims == isinstance(module, PaddedGraph)
        assert [batch.to for batch in reference(adoption).padded] == [2, 4, 8, 9]

    def test_only_one_size_is_padded(self, tmp_path: Path) -> None:
        pads = ("--pad", "t=mask", "--pad", "w=other")
        with pytest.raises(UsageError, match=r"^--pad is given for t=mask, w=other: only"):
            run(written(tmp_path, scripted(MaskedMean())), "--name", "m", *IDS, *pads)

    @pytest.mark.parametrize(
        ("pad", "message"),
        [
            ("seq", "--pad 'seq' is not NAME=MASK: a free size that --input names, and the input"),
            ("seq=other", "--pad seq=other: the mask of 'seq' is 'other', which is not an input"),
        ],
    )
    def test_wrong_options(self, tmp_path: Path, pad: str, message: str) -> None:
        file = written(tmp_path, scripted(MaskedMean()))
        with pytest.raises(UsageError, match=message):
            run(file, "--name", "m", *IDS, "--pad", pad)
