"""`compiled`: packages with a free batch axis; each compilation takes seconds."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch._inductor import config

from export.errors import ExportError
from export.proving.prove import ProofOptions, prove_variants
from export.variants.base import Draft, NotApplicable, Subject
from export.variants.compiled import AotInductor, find_compiler
from export.variants.programs import program_of
from models.manifest import Manifest
from models.processor import cpu_flags, machine
from models.runtimes.forms import Forward
from models.tensors import Arrays, Dimension, TensorSpec
from tests.artifacts import small_subject
from tests.unit.export.definitions import Branching, definition, loaded, proved, quiet, subject

ROOT = Path(__file__).parents[4]
COMPILED = AotInductor("cpu")
pytestmark = pytest.mark.timeout(900)  # on a machine that is busy


class Case(NamedTuple):
    of: Subject
    draft: Draft
    folder: Path
    form: Forward


class Sum(nn.Module):
    """a [n, p], b [n, q], both of a few numbers -> their sums [n, 2]."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.stack([a.sum(1), b.sum(1)], 1)


def _short(rng: np.random.Generator, batch: int) -> Arrays:
    ones = np.ones((batch, 1), np.float32)
    return {"a-b": ones, "a_b": rng.uniform(1, 2, (batch, rng.integers(1, 3))).astype(np.float32)}


# Names that are no identifiers and are alike but for a sign; axes with next to no room.
SHORT = definition(
    Sum,
    inputs=(
        TensorSpec(name="a-b", dtype="float32", shape=(-1, -1), dimensions=(Dimension(most=1),)),
        TensorSpec(name="a_b", dtype="float32", shape=(-1, -1), dimensions=(Dimension(most=2),)),
    ),
    train=None,
    random_inputs=_short,
    golden_inputs=lambda: [{"a-b": np.ones(1, np.float32), "a_b": np.ones(2, np.float32)}],
    held_out=None,
)


class Masked(nn.Module):
    """x, mask [n, s], one s for both, b [n, q] -> the sum where the mask is, times b's [n, 1]."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (x * mask).sum(1, keepdim=True) * b.sum(1, keepdim=True)


def _masked(rng: np.random.Generator, batch: int) -> Arrays:
    shape, other = (batch, int(rng.integers(2, 9))), (batch, int(rng.integers(1, 9)))
    return {
        "x": rng.random(shape, np.float32),
        "mask": rng.integers(0, 5, shape),
        "b": rng.random(other, np.float32),
    }


SEQ = Dimension(name="seq", least=2, most=64)
SHARED = definition(
    Masked,
    inputs=(
        TensorSpec(name="x", dtype="float32", shape=(-1, -1), dimensions=(SEQ,)),
        TensorSpec(name="mask", dtype="int64", shape=(-1, -1), dimensions=(SEQ,), minimum=0),
        TensorSpec(name="b", dtype="float32", shape=(-1, -1), dimensions=(Dimension(most=256),)),
    ),
    outputs=(TensorSpec(name="y", dtype="float32", shape=(-1, 1)),),
    train=None,
    random_inputs=_masked,
    golden_inputs=lambda: [
        {"x": np.ones(3, np.float32), "mask": np.ones(3, np.int64), "b": np.ones(2, np.float32)}
    ],
    held_out=None,
)


class Odd(nn.Module):
    """Takes no even batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] % 2 == 1
        return x * 2


def compiled(of: Subject, folder: Path) -> Case:
    draft = COMPILED.make(of, folder)
    return Case(of, draft, folder, loaded(draft, folder, of.definition))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Of the model that is compiled for other tests too."""
    return compiled(small_subject(), tmp_path_factory.mktemp("small"))


class TestFile:
    def test_compiled_file_is_for_one_device_kind(self, small: Case) -> None:
        draft = small.draft
        assert (draft.file, draft.format) == ("compiled.pt2", "aotinductor")
        assert draft.device_kinds == ("cpu",)
        assert draft.made_by.startswith("torch.export + AOTInductor (freezing, ")
        assert draft.made_by.endswith(f", {find_compiler()})")
        assert [path.name for path in small.folder.iterdir()] == ["compiled.pt2"]

    def test_a_proof_records_what_it_needs(self, small: Case, tmp_path: Path) -> None:
        options = ProofOptions(("compiled",), max_batch=2)
        proof = prove_variants(small.of, options, tmp_path, lambda name: quiet)
        variant = proof.variants["compiled"]
        assert (variant.format, variant.optimized) == ("aotinductor", None)
        assert variant.native == small.draft.native

    def test_this_cpu_has_the_required_flags(self, small: Case) -> None:
        native = small.draft.native
        assert native is not None
        assert native.architecture == machine()
        assert set(native.requires) <= cpu_flags()
        assert list(native.requires) == sorted(set(native.requires))
        if "x86-64-v" in small.draft.made_by:
            assert {"avx2", "fma"} <= set(native.requires)


SHAPES = ((1, 2, 1), (1, 7, 1), (2, 2, 9), (5, 64, 256), (3, 3, 3))


def inputs(batch: int, s: int, q: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of `SHARED`."""
    return torch.rand(batch, s), torch.randint(0, 5, (batch, s)), torch.rand(batch, q)


class TestFreeDimensions:
    def test_every_shape_matches_eager(self, small: Case) -> None:
        proved(small.form, small.of, "float32")
        for batch, size in ((1, 1), (1, 7), (2, 8), (5, 2)):
            given = torch.rand(batch, 1, 4, 4), torch.rand(batch, size)
            wanted = small.of.eager(*given).detach()
            np.testing.assert_allclose(small.form(*given)[0], wanted, rtol=1e-4, atol=1e-5)

    def test_sizes_above_the_declared_maximum_are_refused(self, small: Case) -> None:
        with pytest.raises(ValueError, match="input 'shift' is"):
            small.form(torch.rand(1, 1, 4, 4), torch.rand(1, 9))

    def test_one_dimension_of_two_inputs(self) -> None:
        """The program that is compiled; the next test does it."""
        of = subject(SHARED)
        program = program_of(of, "cpu").module()
        for batch, s, q in SHAPES:
            given = inputs(batch, s, q)
            np.testing.assert_allclose(program(*given), of.eager(*given), rtol=1e-5)

    @pytest.mark.soak
    def test_one_dimension_of_two_inputs_compiles(self, tmp_path: Path) -> None:
        case = compiled(subject(SHARED), tmp_path)
        proved(case.form, case.of, "float32")
        for batch, s, q in SHAPES:
            given = inputs(batch, s, q)
            np.testing.assert_allclose(case.form(*given)[0], case.of.eager(*given), rtol=1e-5)

    @pytest.mark.soak
    def test_similar_names_and_tight_bounds_compile(self, tmp_path: Path) -> None:
        case = compiled(subject(SHORT), tmp_path)
        for length in (1, 2):
            result = case.form(torch.full((2, 1), 5.0), torch.ones(2, length))[0]
            assert result.tolist() == [[5, length]] * 2


def test_failed_compilation_leaves_nothing_behind(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> list[object]:
        level = logging.getLogger("torch").level
        return [torch.get_num_threads(), level, list(warnings.filters), sys.stderr, os.getcwd()]

    before = state()
    with pytest.raises(NotApplicable) as rejected:
        COMPILED.make(subject(definition(Branching)), tmp_path)
    assert str(rejected.value) == (
        "torch.export or AOTInductor failed: Could not guard on data-dependent expression "
        "Eq(u0, 1), in: if bool(x.sum() > 0):"
    )
    assert state() == before
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_fixed_batch_axis_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable) as rejected:
        COMPILED.make(subject(definition(Odd)), tmp_path)
    message = str(rejected.value)
    assert message.startswith(
        "torch.export or AOTInductor failed: Constraints violated (batch): Not"
    )
    assert "\n" not in message


def test_a_file_that_cannot_be_written(small: Case, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"^cannot write compiled\.pt2: No such file"):
        COMPILED.make(small.of, tmp_path / "missing")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_variant_needs_a_cuda_device(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable, match="compiled on a CUDA device, and there is none"):
        AotInductor("cuda").make(subject(definition()), tmp_path)


def run(code: str, **environment: str) -> str:
    """What a process of its own prints: torch reads where its compiler is but once."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


EXPORT = """
import sys
from export.cli import main
from models.catalog import CATALOG
print("code", main(["pairwise", "--max-batch-size", "2", "--out", sys.argv[1]], CATALOG))
"""


FAILS = '#!/bin/sh\n[ "$1" = --version ] || { echo "x.cpp:1: error: too tired" >&2; exit 1; }\n'


class TestCompilers:
    @pytest.mark.soak
    def test_missing_compiler_still_exports_other_variants(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        printed = run(EXPORT.replace("sys.argv[1]", repr(str(out))), PATH="/nowhere", CXX="g++")
        assert "code 0" in printed
        manifest = Manifest.model_validate_json((out / "pairwise/1/manifest.json").read_bytes())
        assert list(manifest.variants) == ["script", "openvino", "onnx", "bf16"]
        reasons = {each.variant: each.reason for each in manifest.left_out}
        assert reasons["compiled"].startswith("it needs a C++ compiler and the program in CXX does")

    @pytest.mark.parametrize(
        ("text", "mode", "message"),
        [
            (None, 0, "the program in CXX does not run; install g++ or clang++, or set CXX to one"),
            ("", 0o644, "the program in CXX does not run; install g++ or clang++, or set CXX to"),
            (FAILS, 0o755, "c++ does not work: C++ compile error: too tired"),
        ],
    )
    def test_broken_compiler_is_reported(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        text: str | None,
        mode: int,
        message: str,
    ) -> None:
        """Torch reads CXX once, when it is imported."""
        compiler = tmp_path / "c++"
        if text is not None:
            compiler.write_text(text)
            compiler.chmod(mode)
        monkeypatch.setenv("CXX", str(compiler))
        with (
            config.patch({"cpp.cxx": (None, str(compiler))}),
            pytest.raises(NotApplicable, match=r"it needs a C\+\+ compiler and ") as rejected,
        ):
            find_compiler()
        assert message in str(rejected.value)
