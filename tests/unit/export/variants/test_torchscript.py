"""`script` and `trace`: the file is there, is frozen, and answers without its class."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export.errors import ExportError
from export.variants.base import Draft, NotApplicable, Subject
from export.variants.torchscript import Method, TorchScript, to_torchscript
from models.definitions import digits, pairwise
from models.definitions.definition import Definition
from tests.unit.export.definitions import (
    CATALOG,
    MIXED,
    Branching,
    Unscriptable,
    definition,
    loaded,
    proved,
    subject,
)

METHODS: tuple[Method, ...] = ("script", "trace")


class Noisy(nn.Module):
    """Refuses with a text of several lines and a path."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise LookupError("no table in /home/somebody/tables/2.bin\nLook elsewhere.")


class Tries(nn.Module):
    """TorchScript has no `try`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return x * 2
        except ValueError:
            return x


class Sums(Unscriptable):
    """Scripted by no other test: torch tells why it rejects a class at the first time only."""


class ThroughNumpy(nn.Module):
    """TorchScript does not support numpy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "model",
    [digits.DEFINITION, pairwise.DEFINITION, MIXED, CATALOG["tiny"]],
    ids=["digits", "pairwise", "mixed", "tiny"],
)
def test_saved_file_matches_eager(tmp_path: Path, model: Definition, method: Method) -> None:
    of = subject(model)
    draft = TorchScript(method).make(of, tmp_path)
    made_by = f"torch.jit.{method} + torch.jit.freeze"
    assert draft == Draft(f"{method}.pt", made_by, ("cpu", "cuda"))
    assert draft.format == "torchscript"
    assert [path.name for path in tmp_path.iterdir()] == [draft.file]
    for optimized in (False, True):
        form = loaded(draft, tmp_path, model, optimized=optimized)
        assert proved(form, of, "float32").batch_sizes == (1, 2, 3, 4, 5)


def test_the_archive_is_not_called_like_a_temporary_file(tmp_path: Path) -> None:
    draft = TorchScript("script").make(subject(CATALOG["tiny"]), tmp_path)
    with zipfile.ZipFile(tmp_path / draft.file) as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == {"archive"}


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_constants(tmp_path: Path, method: Method) -> None:
    of = subject(CATALOG["tiny"])
    module = torch.jit.load(str(tmp_path / TorchScript(method).make(of, tmp_path).file))  # type: ignore[no-untyped-call]
    assert list(module.parameters()) == []
    assert module(torch.full((5, 2), 3.0)).tolist() == [[3.0, 3.0]] * 5


def test_script_keeps_data_dependent_branches(tmp_path: Path) -> None:
    model = definition(Branching)
    form = loaded(TorchScript("script").make(subject(model), tmp_path), tmp_path, model)
    assert form(torch.full((1, 2), 3.0)).tolist() == [[6, 6]]
    assert form(torch.full((1, 2), -3.0)).tolist() == [[-3, -3]]


def test_given_torchscript_is_only_frozen(tmp_path: Path) -> None:
    scripted = torch.jit.script(nn.Linear(2, 2).eval())
    of = Subject("given", definition(), scripted)
    draft = TorchScript("script").make(of, tmp_path)
    assert draft.made_by == "TorchScript as it was given + torch.jit.freeze"
    form = loaded(draft, tmp_path, of.definition)
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(form(rows), scripted(rows).detach(), rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "module", "why"),
    [
        ("script", Tries, "torch.jit.script failed: try blocks aren't supported, in: try:"),
        (
            "script",
            ThroughNumpy,
            (
                "torch.jit.script failed: 'Tensor' object has no attribute or method 'numpy', "
                "in: return torch.from_numpy(x.numpy())"
            ),
        ),
        (
            "script",
            Sums,
            (
                "torch.jit.script failed: Arguments for call are not valid: Expected a value of "
                "type 'Tensor' for argument 'self' but instead found type 'List[Tensor]', "
                "in: return sum((x for _ in range(2)), start=x * 0)"
            ),
        ),
        ("trace", Noisy, "torch.jit.trace failed: no table in 2.bin"),
    ],
)
def test_torch_error_is_reported_in_one_line(
    tmp_path: Path, method: Method, module: type[nn.Module], why: str
) -> None:
    with pytest.raises(NotApplicable) as rejected:
        TorchScript(method).make(subject(definition(module)), tmp_path)
    assert str(rejected.value) == why
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"^cannot write script\.pt: No such file or directory$"):
        TorchScript("script").make(subject(CATALOG["tiny"]), tmp_path / "missing")


def test_trace_disables_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # torch's own default
    network = nn.Conv2d(1, 2, 3).eval()
    traced = to_torchscript(network, (torch.zeros(1, 1, 4, 4),), "trace")
    graph: Any = traced.inlined_graph  # which its nodes do not keep alive
    (convolution,) = graph.findAllNodes("aten::_convolution")
    assert list(convolution.inputs())[-1].toIValue() is False  # allow_tf32


def test_frozen_torchscript_stays_frozen(tmp_path: Path) -> None:
    frozen = torch.jit.freeze(torch.jit.script(nn.Linear(2, 2).eval()))
    of = Subject("given", definition(), frozen)
    form = loaded(TorchScript("script").make(of, tmp_path), tmp_path, of.definition)
    assert torch.equal(form(torch.ones(3, 2)), frozen(torch.ones(3, 2)))
