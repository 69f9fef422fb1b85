"""Forms with special conditions: optimized at load, and compiled."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from export.errors import ExportError
from export.proving.prove import Proof, ProofOptions, prove_variants
from models.definitions.definition import Definition, HeldOut
from models.forms import intra_op_threads
from models.resources import serving_threads
from models.timing import Timing
from tests.unit.export.definitions import CATALOG, Close, definition, quiet, subject


def prove(folder: Path, model: Definition, *variants: str) -> Proof:
    options = ProofOptions(variants or None, max_batch=3)
    return prove_variants(subject(model), options, folder, lambda name: quiet)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestFormsMadeAtLoad:
    """`optimize_for_inference` cannot be saved, and another torch may act differently."""

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


class TestSlowCompiledForms:
    """It holds the GIL, so it is useless if one item takes longer than a plan allows."""

    @pytest.fixture(autouse=True)
    def _nothing_is_short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("export.proving.prove.GIL_LIMIT_S", 0.0)
        monkeypatch.setattr("export.proving.prove.HOPELESS_S", math.inf)

    def test_slow_eager_model_is_not_compiled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def never(*_: object, **__: object) -> None:
            raise AssertionError("it was made")

        monkeypatch.setattr("export.proving.prove.HOPELESS_S", 0.0)
        monkeypatch.setattr("export.variants.compiled.find_compiler", never)
        proof = prove(tmp_path, definition(train=None))
        assert re.match(
            r"a forward of one item takes in eager PyTorch \d+\.\d\d ms",
            proof.left_out["compiled"],
        )

    def test_slow_form_skips_the_reload_measurement(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def never(*_: object, **__: object) -> None:
            raise AssertionError("it was loaded again")

        monkeypatch.setattr("export.proving.prove.growth_per_reload", never)
        proof = prove(tmp_path, definition(train=None))
        assert "compiled" not in proof.variants
        assert re.fullmatch(
            r"a forward of one item takes \d+\.\d\d ms and would stop the whole server for that "
            "long, 0 ms are allowed; to keep it: --variants script,compiled",
            proof.left_out["compiled"],
        )
        assert "compiled.pt2" not in names(tmp_path)

    def test_busy_machine_keeps_the_compiled_form(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A helper of the forward waits for a core all the time."""
        waited_ns = itertools.count(step=10**10)
        monkeypatch.setattr("models.timing.all_threads", lambda: {1: next(waited_ns)})
        notes: list[str] = []
        proof = prove_variants(
            subject(definition(train=None)),
            ProofOptions(max_batch=3),
            tmp_path,
            lambda name: lambda done, total, note: notes.append(note),
            threads=2,
        )
        assert "compiled" in proof.variants
        assert "kept: the machine is too busy to tell whether its forwards are short" in notes

    @pytest.mark.parametrize("threads", [None, 2])
    def test_timing_uses_the_serving_thread_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int | None
    ) -> None:
        """On all cores of a busy machine it would wait for the slowest of them."""
        seen: list[int] = []

        def timed(runs: Iterable[str], *_: object, **__: object) -> Timing[str]:
            seen.append(torch.get_num_threads())
            return Timing({key: [1.0] for key in runs}, {})

        monkeypatch.setattr("export.timing.contest.take_turns", timed)
        with intra_op_threads(3):
            model = subject(definition(train=None))
            options = ProofOptions(max_batch=3)
            proof = prove_variants(model, options, tmp_path, lambda name: quiet, threads)
        assert set(seen) == {threads or serving_threads()}
        assert "compiled" in proof.left_out

    def test_requested_form_is_kept(self, tmp_path: Path) -> None:
        proof = prove(tmp_path, definition(train=None), "compiled")
        assert list(proof.variants) == ["compiled"]
