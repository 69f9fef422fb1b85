"""`torchlane compare`: the forms agree before they are timed, and each has a row."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from export.comparison import compare
from export.comparison.compare import cases, check
from export.errors import ParityError
from export.variants.base import NotApplicable

FORMS = ("eager loop", "batched eager", "scripted")


@pytest.mark.parametrize("case", cases(rows=3, columns=4), ids=lambda case: case.title[:8])
def test_both_ways_to_write_a_function_agree(case: compare.FunctionCase) -> None:
    check(case, {"batched": case.batched})
    with pytest.raises(ParityError, match="wrong and eager loop give different answers"):
        check(case, {"wrong": lambda *inputs: case.batched(*inputs) + 0.01})


def test_every_form_has_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise NotApplicable("it needs a C++ compiler and there is none")

    monkeypatch.setattr(compare, "find_compiler", missing)
    out = io.StringIO()
    with torch.inference_mode():
        compare.compare(cases(rows=3, columns=4)[1], Console(file=out, width=80), rounds=2)
    rows = [line.strip() for line in out.getvalue().splitlines()]
    assert "compiled: left out: it needs a C++ compiler and there is none" in rows
    for form in FORMS:
        assert any(row.startswith(form) and row.endswith("x") for row in rows), form
