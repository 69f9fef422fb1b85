"""A model that crashes or hangs while it is probed loses only later findings."""

from __future__ import annotations

import multiprocessing
import sys

import pytest
import torch
from torch import nn

from export.errors import UsageError
from export.probing import probe_process
from export.probing.probe_process import learn
from export.probing.probing import Findings
from export.probing.samples import two_shapes
from export.reading.declared import read_inputs
from tests.unit.export.torchscripts import SUMS, scripted


class Crashing(nn.Module):
    """x [n, s]: at least one number; a negative one ends the process."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        least = int(x.min())
        if least < 0:
            least = (-9223372036854775807 + least) // least  # -1: the one division that overflows
        return x * 2 + min(least, 0)


class Hanging(nn.Module):
    """x [n, s]: at least one number; a negative one takes for ever."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while int(x.min()) < 0:
            x = x - 1
        return x


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.table(x)
        return output


def learned(data: bytes, text: str, limit_s: float = 60.0) -> Findings:
    inputs = read_inputs([text])
    shapes = tuple(dict.fromkeys(two_shapes([each.spec for each in inputs], (3, 5))))
    return learn(data, "it.pt", inputs, shapes, limit_s)


def notes_of(findings: Findings) -> list[str]:
    return [str(each.spec) for each in findings.inputs]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems end it in other ways")
def test_crash_is_reported_with_earlier_findings() -> None:
    findings = learned(scripted(Crashing()), "x=int64[-1,-1]")
    assert notes_of(findings) == ["x=int64[-1,1<=-1<=1024]"]
    assert findings.notes[0].startswith("axis 0 of 'x' is at least 1: 0 fails (")
    assert findings.notes[1] == (
        "the model ended the process (SIGFPE) while the range of 'x' was tried: that and "
        "everything after it is left open; give what you know with --input, such as 1<=n<=512 for "
        "a size or in 0..30521 for integers"
    )


def test_hanging_model_times_out() -> None:
    findings = learned(scripted(Hanging()), "x=int64[-1,2]", limit_s=6.0)
    assert notes_of(findings) == ["x=int64[-1,2]"]
    assert "it took more than 6 s while " in findings.notes[-1]


def test_findings_are_returned_from_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a new one, as an export starts it: those of other tests are forked."""
    monkeypatch.setattr(probe_process, "multiprocessing", multiprocessing)
    assert notes_of(learned(scripted(Table()), "x=int64[-1,2]")) == ["x=int64[-1,2] in 0..49"]


def test_wrong_declaration_is_returned_as_an_error() -> None:
    with pytest.raises(UsageError, match="299 in 'x' is allowed, but the model fails on it: index"):
        learned(scripted(Table()), "x=int64[-1,2] in 0..299")


def test_no_process_starts_without_open_questions() -> None:
    assert learned(SUMS, "float32[-1,3]", limit_s=0.0).notes == ()
