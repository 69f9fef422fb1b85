"""Forms with special conditions: optimized at load, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export.errors import ExportError, ParityError
from export.proving import verify
from export.proving.prove import Proof, ProofOptions, prove_variants
from models.definitions.definition import Definition, HeldOut
from models.manifest import Parity
from models.runtimes.forms import Forward
from tests.unit.export.definitions import (
    CATALOG,
    Close,
    Unscriptable,
    definition,
    quiet,
    subject,
)


def prove(folder: Path, model: Definition, *variants: str) -> Proof:
    options = ProofOptions(variants or None, max_batch=3)
    return prove_variants(subject(model), options, folder, lambda name: quiet)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestFormsMadeAtLoad:
    """`optimize_for_inference` cannot be saved, and another torch may act differently."""

    @pytest.fixture(autouse=True)
    def _not_shared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the tests return for it is no TorchScript."""
        monkeypatch.setattr("models.runtimes.torchscript.keeps_state", lambda _: True)

    def test_only_the_form_torch_refuses_is_left_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def reject(module: nn.Module) -> nn.Module:
            raise RuntimeError("not this one\nwith a long story")

        monkeypatch.setattr("torch.jit.optimize_for_inference", reject)
        proof = prove(tmp_path, CATALOG["tiny"], "script")
        assert proof.variants["script"].optimized is None
        assert proof.left_out == {
            "script-optimized": "optimize_for_inference at load: script.pt cannot be loaded here: "
            "not this one"
        }
        assert names(tmp_path) == ["script.pt"]

    @pytest.mark.parametrize(
        ("error", "why"),
        [(0.1, "golden example 0: output 'y' differs by up to 0.1 "), (5e-6, "accuracy 0.0000 is")],
    )
    def test_only_the_form_with_wrong_answers_is_left_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: float, why: str
    ) -> None:
        """Off by five millionths: within the tolerance, but enough to decide each close call."""

        def worse(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda x: module(x) + torch.tensor([error, 0])

        def closest() -> HeldOut:
            return HeldOut({"x": np.array([[1, 1.000001]] * 4, np.float32)}, np.ones(4, int))

        monkeypatch.setattr("torch.jit.optimize_for_inference", worse)
        model = definition(Close, train=None, held_out=closest)
        proof = prove(tmp_path, model, "script")
        assert (proof.variants["script"].optimized, proof.variants["script"].accuracy) == (None, 1)
        assert proof.left_out["script-optimized"].startswith(
            f"optimize_for_inference at load: {why}"
        )

    @pytest.mark.parametrize(("error", "same"), [(0, True), (5e-3, False)])
    def test_a_lossy_form_is_interchangeable_if_it_agrees(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: float, same: bool
    ) -> None:
        """Off by five thousandths: within the tolerance of bf16, not of float32."""

        def other(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda x: module(x) + error

        monkeypatch.setattr("torch.jit.optimize_for_inference", other)
        variant = prove(tmp_path, definition(held_out=None), "bf16").variants["bf16"]
        assert variant.optimized is not None
        assert variant.interchangeable is same

    def test_unloadable_file_is_not_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def reject(*_: object, **__: object) -> nn.Module:
            raise RuntimeError("unknown format")

        monkeypatch.setattr("torch.jit.load", reject)
        message = "could be built: script: script.pt cannot be loaded here: unknown format$"
        with pytest.raises(ExportError, match=message):
            prove(tmp_path, CATALOG["tiny"], "script")
        assert names(tmp_path) == []


def test_wrong_answers_of_an_optional_format_end_no_default_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = verify.check_parity

    def wrong(form: Forward, *others: Any, **more: Any) -> Parity:
        if not isinstance(form, torch.jit.ScriptModule):
            raise ParityError("output 'y' differs")
        return check(form, *others, **more)

    monkeypatch.setattr(verify, "check_parity", wrong)
    model = definition(Unscriptable, train=None)
    with pytest.raises(ParityError, match=r"^onnx: output .* Nothing was written"):
        prove(tmp_path, model, "trace", "onnx")
    monkeypatch.setattr("export.proving.prove.select_variants", lambda *_: ("trace", "onnx"))
    proof = prove(tmp_path, model)
    assert list(proof.variants) == ["trace"]
    assert proof.left_out["onnx"] == "output 'y' differs"
    assert names(tmp_path) == ["trace.pt"]
