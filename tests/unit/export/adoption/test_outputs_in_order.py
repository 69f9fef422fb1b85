"""A definition's model that returns a dict or a NamedTuple: its outputs keep their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from export.adoption.outputs import in_order
from export.errors import ExportError
from export.variants import int8, rowwise
from export.variants.base import Subject
from export.variants.registry import MAKERS
from models.definitions.definition import Definition
from tests.unit.export.definitions import definition, loaded, of_vectors
from tests.unit.export.jobs import make
from tests.unit.models.manifests import spec


class Mapped(nn.Module):
    """x [n, 2] -> double and half, each [n, 2], in this order."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(torch.eye(2))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.linear(x)
        return {"double": x * 2, "half": x / 2}


class Both(NamedTuple):
    double: Tensor
    half: Tensor


class Named(Mapped):
    def forward(self, x: Tensor) -> Both:  # type: ignore[override]
        x = self.linear(x)
        return Both(x * 2, x / 2)


class Plain(Mapped):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = self.linear(x)
        return x * 2, x / 2


def of_two(module: Callable[[], nn.Module], *names: str) -> Definition:
    return of_vectors(module, (2,), outputs=tuple(spec(name, shape=(-1, 2)) for name in names))


@pytest.mark.parametrize("module", [Mapped, Named])
@pytest.mark.parametrize("variant", ["script", "trace", "bf16", "int8"])
def test_every_variant_has_the_declared_output_order(
    tmp_path: Path, module: type[nn.Module], variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (rowwise, int8):
        monkeypatch.setattr(each, "MIN_WEIGHTS", 1)
    model = of_two(module, "half", "double")
    draft = MAKERS[variant].make(Subject("m", model, in_order(module().eval(), model)), tmp_path)
    half, double = loaded(draft, tmp_path, model)(torch.ones(3, 2))
    assert (half[0].tolist(), double[0].tolist()) == ([0.5, 0.5], [2, 2])


def test_an_export_has_the_declared_output_order(tmp_path: Path) -> None:
    for example in make(tmp_path, of_two(Mapped, "half", "double"), "trace").manifest.golden:
        x = example.inputs["x"].array()
        assert example.outputs["half"].array() == pytest.approx(x / 2)
        assert example.outputs["double"].array() == pytest.approx(x * 2)


def test_torch_export_sees_a_plain_tuple() -> None:
    wrapped = in_order(Mapped().eval(), of_two(Mapped, "half", "double"))
    x = torch.ones(3, 2)
    half, double = torch.export.export(wrapped, (x,)).module()(x)
    assert (half[0, 0], double[0, 0]) == (0.5, 2)


def test_plain_tuple_is_not_wrapped() -> None:
    built = Plain().eval()
    assert in_order(built, of_two(Plain, "a", "b")) is built


@pytest.mark.parametrize("module", [Mapped, Named])
@pytest.mark.parametrize("names", [("double",), ("double", "third"), ("double", "half", "third")])
def test_other_names_are_rejected(module: Callable[[], nn.Module], names: tuple[str, ...]) -> None:
    message = f"^the model returns double, half, but the definition declares {', '.join(names)}: "
    with pytest.raises(ExportError, match=message):
        in_order(module().eval(), of_two(module, *names))


def test_staged_model_is_not_wrapped() -> None:
    staged_definition = dataclasses.replace(
        definition(Mapped), stages=lambda module: (module, module)
    )
    built = staged_definition.build()
    assert in_order(built, staged_definition) is built
