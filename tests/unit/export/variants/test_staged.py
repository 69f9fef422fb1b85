"""`staged`: a file for each stage; together they answer like the whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from export.errors import ExportError
from export.variants.base import NotApplicable, Subject
from export.variants.staged import Staged
from tests.unit.export.definitions import loaded, of_vectors, proved, subject


class Two(nn.Module):
    """x [n, 4] -> y [n, 2], through 8 numbers and their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Wide()
        self.second = Narrow()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide, total = self.first(x)
        answer: torch.Tensor = self.second(wide, total)
        return answer


class Wide(nn.Module):
    """x [n, 4] -> [n, 8], [n, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.relu(self.layer(x))
        return wide, wide.sum(dim=1, keepdim=True)


class Narrow(nn.Module):
    """[n, 8], [n, 1] -> [n, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, wide: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.layer(wide) + total
        return answer


class Stubborn(nn.Module):
    """Neither scripted nor traced: its text differs from run to run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return torch.from_numpy(x.detach().numpy() * 2)
        finally:
            raise LookupError("no such table")


def staged(stages: Callable[[Any], Sequence[nn.Module]] | None) -> Subject:
    return subject(of_vectors(Two, (4,), stages=stages))


def halves(module: Two) -> Sequence[nn.Module]:
    return module.first, module.second


def test_stages_together_match_the_whole_model(tmp_path: Path) -> None:
    of = staged(halves)
    draft = Staged().make(of, tmp_path)
    assert draft.files == ("stage1.pt", "stage2.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(draft.files)
    assert draft.format == "torchscript"
    assert draft.made_by == "torch.jit.script + torch.jit.script, frozen"
    proved(loaded(draft, tmp_path, of.definition), of, "float32")


def test_a_stage_that_cannot_be_scripted_is_traced(tmp_path: Path) -> None:
    class Star(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *parts: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.inner(*parts)
            return answer

    of = staged(lambda module: (module.first, Star(module.second).eval()))
    draft = Staged().make(of, tmp_path)
    assert draft.made_by == "torch.jit.script + torch.jit.trace, frozen"
    proved(loaded(draft, tmp_path, of.definition), of, "float32")


def rejects(_: object) -> Sequence[nn.Module]:
    raise LookupError("no such layer")


class Lists(nn.Module):
    """Returns what no stage can take."""

    def forward(self, x: torch.Tensor) -> int:
        return int(x.shape[0])


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        (None, "the definition declares no stages"),
        (lambda module: [module], "the definition splits it into 1; at least 2 are needed"),
        (rejects, "the definition cannot split it: no such layer"),
        (lambda module: [Stubborn(), module.second], "stage 1: neither script nor trace can"),
        (lambda module: [module.second, module.first], "stage 1 fails on the first golden example"),
        (lambda module: [Lists(), module.second], "stage 1 returns int; it must return a tensor,"),
    ],
)
def test_unstageable_model_gives_reason_and_no_files(
    tmp_path: Path, stages: Callable[[Any], Sequence[nn.Module]] | None, reason: str
) -> None:
    with pytest.raises(NotApplicable, match=f"^{re.escape(reason)}"):
        Staged().make(staged(stages), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"^cannot write stage1\.pt"):
        Staged().make(staged(halves), tmp_path / "none")
