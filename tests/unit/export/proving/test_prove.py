"""Variants that are made, kept, left out with reasons, or fail the export."""

from __future__ import annotations

import dataclasses
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from export.errors import ExportError, ParityError, UsageError
from export.proving.prove import Proof, ProofOptions, prove_variants
from export.variants.base import HALVES, TOLERANCES, Draft, NotApplicable
from export.variants.compiled import AotInductor
from export.variants.registry import MAKERS, select_variants
from models.definitions.definition import Definition, HeldOut, Progress
from tests.unit.export.definitions import (
    CATALOG,
    Branching,
    Close,
    Fine,
    Liar,
    LossyNotANumber,
    ScriptedNotANumber,
    SlowInHalf,
    Unscriptable,
    close_calls,
    definition,
    of_vectors,
    quiet,
    subject,
)
from tests.unit.export.kinds import HalfModel
from tests.unit.models.manifests import spec

CUDA = {"compiled-cuda", "fp16"}
NEEDS = {"openvino": "openvino", "onnx": "onnxscript"}
MISSING = {variant for variant, package in NEEDS.items() if not find_spec(package)}


class Weighted(Branching):
    """Has a weight; torch.export cannot follow it, so nothing is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))


class Sums(Unscriptable):
    """Scripted by no other test: torch tells why it rejects a class at the first time only."""


def prove(
    folder: Path,
    model: Definition,
    *variants: str,
    drop: float = 0.5,
    max_batch: int = 3,
) -> Proof:
    options = ProofOptions(variants or None, drop, max_batch)
    return prove_variants(subject(model), options, folder, lambda name: quiet)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(autouse=True)
def _no_form_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent of the load on this machine."""
    monkeypatch.setattr("export.proving.verify.QUICK_S", 1e9)


class TestByDefault:
    def test_trace_replaces_an_impossible_script_and_all_others_are_tried(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All but a compiler, which takes seconds, of a model that cannot be scripted."""

        def missing(*_: object) -> Draft:
            raise NotApplicable("it needs a compiler")

        monkeypatch.setattr(AotInductor, "make", missing)
        proof = prove(tmp_path, definition(Sums, train=None))
        expected = ["trace", "openvino", "onnx", "bf16"]
        assert list(proof.variants) == [each for each in expected if each not in MISSING]
        assert names(tmp_path) == sorted(variant.file for variant in proof.variants.values())
        assert {*proof.variants, *proof.left_out} == set(MAKERS) - {"staged"}  # it has none
        assert proof.left_out["script"].startswith("torch.jit.script failed: Arguments for call")
        assert not any("\n" in why for why in proof.left_out.values())

    def test_a_large_model_has_no_forms_with_several_copies_of_its_weights(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("export.proving.prove.LARGE_BYTES", 1)
        proof = prove(tmp_path, of_vectors(Weighted, (2,)), max_batch=2)
        assert {"openvino", "onnx", "script-optimized"} <= set(proof.left_out)
        assert proof.left_out["openvino"] == (
            "it would hold several copies of the weights, which are large"
        )
        assert "script" in proof.variants

    def test_working_script_makes_no_trace(self, tmp_path: Path) -> None:
        proof = prove(tmp_path, definition(Branching, train=None))
        assert list(proof.variants) == ["script", "bf16"]
        assert "trace" not in proof.left_out

    def test_inaccurate_lossy_variant_is_left_out(self, tmp_path: Path) -> None:
        proof = prove(tmp_path, definition(Fine, train=None, held_out=None))
        assert list(proof.variants) == ["script"]
        assert "differs by up to" in proof.left_out["bf16"]
        assert names(tmp_path) == ["script.pt"]

    def test_much_slower_lossy_variant_is_left_out_unless_it_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("export.proving.verify.QUICK_S", 0.0)
        model = definition(SlowInHalf, train=None, held_out=None)
        proof = prove(tmp_path, model)
        assert "bf16" not in proof.variants
        assert re.match(r"on this CPU it takes \d+ times as long", proof.left_out["bf16"])
        assert "bf16" in prove(tmp_path, model, "script", "bf16").variants

    def test_non_finite_variant_is_left_out(self, tmp_path: Path) -> None:
        proof = prove(tmp_path, definition(LossyNotANumber, train=None))
        assert list(proof.variants) == ["script"]
        assert "output 'y' is not finite, eager's is" in proof.left_out["bf16"]
        assert names(tmp_path) == ["script.pt"]


class TestVariants:
    def test_each_form_is_proved_up_to_the_largest_batch(self, tmp_path: Path) -> None:
        proof = prove(tmp_path, CATALOG["tiny"], "bf16", "script", max_batch=6)
        assert list(proof.variants) == ["script", "bf16"]  # by preference
        assert (proof.left_out, proof.accuracy) == ({}, 0.75)
        for name, precision in (("script", "float32"), ("bf16", "bf16")):
            variant = proof.variants[name]
            assert (variant.file, variant.precision) == (f"{name}.pt", precision)
            assert variant.torch_version == torch.__version__
            assert variant.tolerance == TOLERANCES[variant.precision]
            assert variant.accuracy == 0.75
            for parity in (variant.parity, variant.optimized):
                assert parity is not None
                assert parity.batch_sizes == (1, 2, 3, 4, 5, 6)
                assert list(parity.outputs) == ["y"]

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_model_is_compared_by_its_own_precision(
        self, tmp_path: Path, dtype: torch.dtype
    ) -> None:
        model = of_vectors(lambda: HalfModel(dtype), (3, 8, 8), outputs=(spec("y", shape=(-1, 8)),))
        variant = prove(tmp_path, model, "script").variants["script"]
        assert variant.tolerance.of_range == TOLERANCES[HALVES[dtype]].of_range
        assert variant.tolerance.exact_integers
        assert variant.optimized is not None  # its folded batch norms round elsewhere
        assert max(variant.parity.max_absolute, variant.optimized.max_absolute) > 1e-5

    def test_allowed_share_of_integers_is_recorded(self, tmp_path: Path) -> None:
        options = ProofOptions(("script",), max_batch=2, integer_share=0.02)
        proof = prove_variants(subject(CATALOG["tiny"]), options, tmp_path, lambda name: quiet)
        assert proof.variants["script"].tolerance.integer_share == 0.02

    def test_sparse_weights_have_no_size(self, tmp_path: Path) -> None:
        class Sparse(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("adjacency", torch.eye(2).to_sparse())

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

        proof = prove(tmp_path, definition(Sparse, train=None, held_out=None), "trace")
        assert list(proof.variants) == ["trace"]

    def test_steps_report_progress(self, tmp_path: Path) -> None:
        calls: dict[str, list[tuple[int, int, str]]] = {}

        def stage(name: str) -> Progress:
            return lambda done, total, note: calls.setdefault(name, []).append((done, total, note))

        options = ProofOptions(("script", "int8"), max_batch=2)
        prove_variants(subject(CATALOG["tiny"]), options, tmp_path, stage)
        assert list(calls) == ["eager", "script", "int8"]
        assert calls["eager"] == [(2, 2, "batch 2")]
        assert calls["script"][0] == (0, 1, "making")
        assert [each[:2] for each in calls["script"][1:]] == [(n, 4) for n in (1, 2, 3, 4)] * 2
        assert calls["int8"][-1][2].startswith("left out: convolutions, and linear layers")


class TestAccuracy:
    @pytest.mark.parametrize("drop", [0.5, 99.9])
    def test_a_drop_removes_a_variant(self, tmp_path: Path, drop: float) -> None:
        model = definition(Close, train=None, held_out=close_calls)
        proof = prove(tmp_path, model, "script", "bf16", drop=drop)
        assert (list(proof.variants), proof.accuracy) == (["script"], 1)
        assert proof.left_out["bf16"] == (
            f"accuracy 0.0000 is 100.00 points below eager's; --max-accuracy-drop allows {drop:g}"
        )
        assert names(tmp_path) == ["script.pt"]

    def test_drop_fails_export_of_the_only_variant(self, tmp_path: Path) -> None:
        model = definition(Close, train=None, held_out=close_calls)
        message = r"^no variant of 'tiny' could be built: bf16: accuracy 0\.0000 is 100\.00 points"
        with pytest.raises(ExportError, match=message):
            prove(tmp_path, model, "bf16")
        assert names(tmp_path) == []

    def test_drop_equal_to_the_limit_is_allowed(self, tmp_path: Path) -> None:
        """Of 200 one more is wrong: 0.5 points, which floating point calls a little more."""

        def one_of_200() -> HeldOut:
            rows = np.array([[1, 1.001]] + [[0, 1]] * 199, np.float32)
            return HeldOut({"x": rows}, np.ones(200, int))

        model = definition(Close, train=None, held_out=one_of_200)
        proof = prove(tmp_path, model, "script", "bf16")
        assert (proof.accuracy, proof.variants["bf16"].accuracy) == (1, 0.995)


class TestRejected:
    @pytest.mark.parametrize(
        ("module", "message"),
        [
            (Liar, "^script: golden example 0: output 'y' differs by up to 0.001 "),
            (ScriptedNotANumber, "^script: golden example 0: output 'y' is not finite, eager's is"),
        ],
    )
    @pytest.mark.parametrize("asked", [(), ("script", "bf16")])
    def test_float32_that_differs_from_eager(
        self, tmp_path: Path, module: type[nn.Module], message: str, asked: tuple[str, ...]
    ) -> None:
        with pytest.raises(ParityError, match=message) as rejected:
            prove(tmp_path, definition(module, train=None), *asked)
        others = (
            ",".join(asked[1:])
            or "trace,onednn,compiled,compiled-cuda,openvino,onnx,bf16,fp16,int8"
        )
        hint = f". Nothing was written; to export without it: --variants {others}"
        assert str(rejected.value).endswith(hint)

    def test_a_requested_lossy_variant(self, tmp_path: Path) -> None:
        model = definition(Fine, train=None, held_out=None)
        message = r"^bf16: .* differs by up to .* to export without it: --variants script$"
        with pytest.raises(ParityError, match=message):
            prove(tmp_path, model, "script", "bf16")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
    def test_variants_the_machine_cannot_build(self, tmp_path: Path) -> None:
        message = "compiled-cuda: it is compiled on a CUDA device, and there is none; fp16: it is"
        with pytest.raises(ExportError, match=message):
            prove(tmp_path, CATALOG["tiny"], *CUDA)

    def test_the_only_variant_gets_no_omission_hint(self, tmp_path: Path) -> None:
        with pytest.raises(ParityError, match=r"max \|value\|\)$"):
            prove(tmp_path, definition(Liar, train=None), "script")


class TestWanted:
    def test_all_by_default_or_declared_stages(self) -> None:
        whole = CATALOG["tiny"]
        assert select_variants(None, whole) == tuple(MAKERS)[:-1]
        split = dataclasses.replace(whole, stages=lambda module: (module, module))
        assert select_variants(None, split) == ("staged",)
        assert select_variants(("staged",), whole) == ("staged",)

    def test_each_once_in_order_of_preference(self) -> None:
        assert select_variants(("int8", "script", "int8"), CATALOG["tiny"]) == ("script", "int8")

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (("script", "int4", "fast"), "--variants int4,fast: there are: script, trace, onednn"),
            ((), "--variants '': there are: script, trace, onednn"),
        ],
    )
    def test_unknown_ones(self, value: tuple[str, ...], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            select_variants(value, CATALOG["tiny"])
