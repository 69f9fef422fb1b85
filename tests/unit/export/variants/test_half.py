"""`bf16` and `fp16`: half precision inside, the manifest's dtypes at inputs and outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from export.errors import ParityError
from export.proving import verify
from export.proving.reference import reference_of
from export.variants.base import TOLERANCES, Draft, NotApplicable
from export.variants.half import Half
from export.variants.torchscript import TorchScript
from models.definitions import digits, pairwise
from models.definitions.definition import Definition
from models.runtimes.base import VariantFile
from models.runtimes.forms import load_form
from tests.unit.export.definitions import (
    MIXED,
    Mixed,
    Unscriptable,
    definition,
    loaded,
    of_vectors,
    proved,
    quiet,
    subject,
)
from tests.unit.models.manifests import spec


class MixedUnscriptable(Mixed):
    """The same, with a `try` that TorchScript does not know."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        try:
            return x + self.table(index), index + 1
        except ValueError:
            return x, index


class Words(nn.Module):
    """index [n] -> its row [n, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 2)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        row: torch.Tensor = self.table(index)
        return row


class AddsOne(nn.Module):
    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return index + 1


class Locked(nn.Module):
    """Holds something that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.file = Path(__file__).open("rb")  # noqa: SIM115 - it is to stay open

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def of_indices(module: type[nn.Module], **changes: object) -> Definition:
    return definition(
        module,
        inputs=(spec("index", "int64", (-1,)),),
        random_inputs=lambda rng, batch: {"index": rng.integers(0, 300, batch)},
        golden_inputs=lambda: [{"index": np.array(299)}],
        train=None,
        held_out=None,
        **changes,
    )


@pytest.mark.parametrize(
    ("model", "method"),
    [
        (digits.DEFINITION, "script"),
        (pairwise.DEFINITION, "script"),
        (MIXED, "script"),
        (definition(Unscriptable), "trace"),
        (of_indices(Words), "script"),
    ],
    ids=["digits", "pairwise", "mixed", "unscriptable", "indices"],
)
def test_bf16_stays_within_its_tolerance(tmp_path: Path, model: Definition, method: str) -> None:
    of = subject(model)
    draft = Half("bf16").make(of, tmp_path)
    made_by = f"module.to(torch.bfloat16) + torch.jit.{method}"
    assert draft == Draft("bf16.pt", made_by, ("cpu", "cuda"))
    assert [path.name for path in tmp_path.iterdir()] == [draft.file]
    for optimized in (False, True):
        proved(loaded(draft, tmp_path, model, optimized=optimized), of, "bf16")


def test_bf16_computes_in_half_precision(tmp_path: Path) -> None:
    of = subject(digits.DEFINITION)
    draft = Half("bf16").make(of, tmp_path)
    form = loaded(draft, tmp_path, of.definition)
    with pytest.raises(ParityError, match="output 'scores' differs by up to"):
        proved(form, of, "float32")
    script = TorchScript("script").make(of, tmp_path)
    sizes = [(tmp_path / each.file).stat().st_size for each in (draft, script)]
    assert sizes[0] < 0.6 * sizes[1]


@pytest.mark.parametrize("module", [Mixed, MixedUnscriptable])
def test_integers_are_not_converted(tmp_path: Path, module: type[nn.Module]) -> None:
    model = definition(
        module,
        **{
            name: getattr(MIXED, name)
            for name in ("inputs", "outputs", "train", "random_inputs", "golden_inputs", "held_out")
        },
    )
    of = subject(model)
    draft = Half("bf16").make(of, tmp_path)
    assert draft.made_by.endswith("script" if module is Mixed else "trace")
    index = torch.tensor([257, 259])  # one number in bf16
    row, following = loaded(draft, tmp_path, model)(torch.zeros(2, 2), index)
    assert (following.tolist(), following.dtype) == ([258, 260], torch.int64)
    assert row.dtype == torch.float32
    expected = of.eager(torch.zeros(2, 2), index)[0].detach()
    np.testing.assert_allclose(row, expected, rtol=0.01)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (
            of_indices(AddsOne, outputs=(spec("next", "int64", (-1,)),)),
            r"^it has no floating-point weights and no float32 input$",
        ),
        (definition(Locked), r"^cannot make a copy in torch\.bfloat16: cannot pickle"),
    ],
)
def test_unsuitable_models_are_not_applicable(tmp_path: Path, model: Definition, why: str) -> None:
    of = subject(model)
    with pytest.raises(NotApplicable, match=why):
        Half("bf16").make(of, tmp_path)
    assert list(tmp_path.iterdir()) == []
    if isinstance(of.eager, Locked):
        of.eager.file.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_fp16_needs_a_cuda_device(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable, match="verified on a CUDA device, and there is none"):
        Half("fp16").make(subject(digits.DEFINITION), tmp_path)


@pytest.mark.gpu
def test_fp16_on_a_cuda_device(tmp_path: Path) -> None:
    of = subject(of_vectors(lambda: nn.Linear(8, 2), (8,)))
    draft = Half("fp16").make(of, tmp_path)
    assert draft.device_kinds == ("cuda",)
    device = torch.device("cuda")
    form = load_form(
        [VariantFile.of((tmp_path / draft.file).read_bytes())],
        draft.format,
        of.definition.inputs,
        device,
    )
    against = reference_of(of.eager, of.definition, 5, quiet)
    verify.check_parity(form, against, TOLERANCES["fp16"], quiet, device)
