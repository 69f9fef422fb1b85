"""A variant's file becomes a callable; its answers become arrays."""

from __future__ import annotations

import ctypes
import io
import re
import zipfile
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from models.manifest import NativeCode
from models.runtimes import forms
from models.runtimes.base import VariantFile
from models.runtimes.forms import (
    WrongMachine,
    check_runs_here,
    load_form,
    named_outputs,
)
from models.system.archive import ArchiveError
from tests.artifacts import PICTURE, scripted
from tests.unit.models.manifests import make_variant, spec

CPU = torch.device("cpu")
MACHINE_CODE = make_variant(
    "compiled.pt2",
    native=NativeCode(architecture="x86_64", requires=("avx2", "fma")),
    torch_version="2.13.0+cpu",
)


@pytest.mark.parametrize("file_format", ["torchscript", "aotinductor"])
class TestArchives:
    """Torch unpacks everything it gets, so it must not get this."""

    @pytest.fixture(autouse=True)
    def _torch_reads_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def read(*arguments: object, **options: object) -> None:
            pytest.fail("torch got to read it")

        monkeypatch.setattr(torch.jit, "load", read)
        monkeypatch.setattr(ctypes, "CDLL", read)

    @pytest.mark.parametrize("data", [b"", b"not a model", b"\x80\x02}q\x00."])
    def test_bytes_that_are_not_an_archive(
        self, file_format: Literal["torchscript", "aotinductor"], data: bytes
    ) -> None:
        with pytest.raises(ArchiveError, match="is not a zip archive"):
            load_form([VariantFile.of(data)], file_format, [PICTURE], CPU)

    def test_paths_that_lead_out_of_the_folder(
        self, file_format: Literal["torchscript", "aotinductor"]
    ) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("../evil.so", b"")
        with pytest.raises(ArchiveError, match=r"'\.\./evil\.so', a path that leads out"):
            load_form([VariantFile.of(buffer.getvalue())], file_format, [PICTURE], CPU)


class TestRunsHere:
    @pytest.fixture(autouse=True)
    def _a_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forms, "machine", lambda: "x86_64")
        monkeypatch.setattr(forms, "cpu_flags", lambda: frozenset({"avx2", "fma", "sse2"}))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    @pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.0+cu130"])
    def test_machine_code_for_this_machine(self, version: str) -> None:
        check_runs_here(MACHINE_CODE, CPU, version)

    def test_torchscript_runs_with_any_torch_on_any_machine(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(forms, "machine", lambda: "aarch64")
        check_runs_here(make_variant(torch_version="1.0.0"), CPU, "2.13.0")

    def test_another_kind_of_device(self) -> None:
        with pytest.raises(WrongMachine, match=r"^compiled\.pt2 runs on cpu, not on cuda:1$"):
            check_runs_here(MACHINE_CODE, torch.device("cuda:1"), "2.13.0")

    def test_another_architecture(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forms, "machine", lambda: "aarch64")
        message = "compiled.pt2 is compiled for x86_64 with avx2, fma; cpu here is aarch64"
        with pytest.raises(WrongMachine, match=re.escape(message) + "$"):
            check_runs_here(MACHINE_CODE, CPU, "2.13.0")

    def test_a_missing_cpu_flag(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forms, "cpu_flags", lambda: frozenset({"avx2", "sse2"}))
        with pytest.raises(WrongMachine, match=r"cpu here is x86_64, without fma$"):
            check_runs_here(MACHINE_CODE, CPU, "2.13.0")

    @pytest.mark.parametrize("version", ["2.13.1", "2.12.0+cpu", "2.14.0a0"])
    def test_another_torch(self, version: str) -> None:
        message = (
            "compiled.pt2 was compiled by torch 2.13.0+cpu and runs only with that "
            f"version; this is {version}"
        )
        with pytest.raises(WrongMachine, match=re.escape(message)):
            check_runs_here(MACHINE_CODE, CPU, version)

    @pytest.mark.parametrize(("needs", "runs"), [("sm_90", True), ("sm_80", False)])
    def test_cuda_code_is_for_one_architecture(self, needs: str, runs: bool) -> None:
        native = NativeCode(architecture="x86_64", requires=(needs,))
        variant = make_variant("compiled-cuda.pt2", native=native, device_kinds=("cuda",))
        device = torch.device("cuda:0")
        if runs:
            check_runs_here(variant, device, "2.13.0")
        else:
            with pytest.raises(WrongMachine, match="cuda:0 here is x86_64, without sm_80"):
                check_runs_here(variant, device, "2.13.0")


class TwoOutputs(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x.sum(dim=1).to(torch.int64)


class TestNamedOutputs:
    one, two = spec("one", shape=(-1, 2)), spec("two", "int64", shape=(-1,))

    def test_outputs_follow_the_order_of_the_specs(self) -> None:
        form = load_form(
            [VariantFile.of(scripted(TwoOutputs()).data)], "torchscript", [spec("x")], CPU
        )
        named = named_outputs(form(torch.tensor([[1.0, 2.0]])), [self.one, self.two])
        assert list(named) == ["one", "two"]
        np.testing.assert_array_equal(named["one"], [[1, 2]])
        np.testing.assert_array_equal(named["two"], [3])

    @pytest.mark.parametrize("made", [[torch.ones(1, 2)], (torch.ones(1, 2),), torch.ones(1, 2)])
    def test_a_list_a_tuple_or_neither(self, made: object) -> None:
        assert named_outputs(made, [self.one])["one"].shape == (1, 2)

    @pytest.mark.parametrize(
        ("made", "message"),
        [
            ((), "the model returned 0 outputs, but 1 are declared"),
            ((torch.ones(1, 2),) * 2, "the model returned 2 outputs, but 1 are declared"),
            (None, "output 'one' is not a tensor but NoneType"),
            ({"one": torch.ones(1, 2)}, "output 'one' is not a tensor but dict"),
            (["text"], "output 'one' is not a tensor but str"),
            (torch.ones(1, 2).half(), "output 'one' is torch.float16, not float32"),
        ],
    )
    def test_outputs_that_differ_from_the_specs(self, made: object, message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            named_outputs(made, [self.one])
