"""`onednn`: made of models that mostly multiply by large matrices, and as exact as the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from export.variants.base import NotApplicable
from export.variants.onednn import MIN_WEIGHTS, OneDnn
from tests.unit.export.definitions import loaded, of_vectors, proved, subject

WIDE = 512


class Encoder(nn.Module):
    """x [n, 64] -> y [n, 2]: two large layers, one of them with no bias, and small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, WIDE)
        self.wide = nn.Sequential(
            nn.Linear(WIDE, WIDE), nn.GELU(), nn.Linear(WIDE, WIDE, bias=False)
        )
        self.last = nn.Linear(WIDE, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.wide(self.first(x)))
        return y


class Convolutional(Encoder):
    """Few weights are of the convolution, and most of the work."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 256, 5, padding=2)
        self.back = nn.Conv1d(256, 1, 5, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.conv(x.unsqueeze(1).repeat(1, 1, 64))
        return super().forward(self.back(wide).mean(1)[:, :64])


class Tables(Encoder):
    """Most weights are in tables that are never multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1000, 4096))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.table[0, :64])


needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    reason="this torch was built without oneDNN",
)


@needs_onednn
@pytest.mark.parametrize("optimized", [False, True])
def test_reloaded_variant_matches_eager(tmp_path: Path, optimized: bool) -> None:
    result = subject(of_vectors(Encoder, (64,)))
    draft = OneDnn().make(result, tmp_path)
    assert (draft.file, draft.device_kinds) == ("onednn.pt", ("cpu",))
    again = loaded(draft, tmp_path, result.definition, optimized=optimized)
    assert proved(again, result, "float32").max_absolute < 1e-5
    assert all(type(layer) is nn.Linear for layer in (result.eager.first, result.eager.last))


@needs_onednn
def test_weights_that_are_not_multiplied_do_not_count(tmp_path: Path) -> None:
    assert OneDnn().make(subject(of_vectors(Tables, (64,))), tmp_path).file == "onednn.pt"


@needs_onednn
@pytest.mark.parametrize("module", [Convolutional, lambda: nn.Linear(64, 2), nn.ReLU])
def test_models_without_large_layers_have_no_variant(
    module: Callable[[], nn.Module], tmp_path: Path
) -> None:
    with pytest.raises(NotApplicable, match=f"{MIN_WEIGHTS:,} weights"):
        OneDnn().make(subject(of_vectors(module, (64,))), tmp_path)
