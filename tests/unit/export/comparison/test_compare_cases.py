"""The functions that are compared, and the forms that are made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config

from export.comparison.compare_cases import (
    BATCHED,
    LOOP,
    SCRIPTED,
    Case,
    agree,
    cases,
    compiled,
    timed,
)
from export.errors import ParityError
from export.timing.profiling import profile
from export.variants.base import NotApplicable
from export.variants.compiled import find_compiler

PAIRWISE, CHAIN = cases(rows=3, columns=4, length=5)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Callable[..., Any], Path]:
    """The chain, compiled, and its file."""
    try:
        find_compiler()
    except NotApplicable as why:
        pytest.skip(str(why))
    file = tmp_path_factory.mktemp("package") / "compiled.pt2"
    # For one package it takes longer to compile headers beforehand.
    with config.patch({"aot_inductor.precompile_headers": False}):
        return compiled(CHAIN, file), file


def test_the_default_sizes_are_the_published_ones() -> None:
    pairwise, chain = cases()
    assert [tuple(each.shape) for each in pairwise.inputs] == [(100, 2), (200, 2)]
    assert [tuple(each.shape) for each in chain.inputs] == [(5,)]
    assert (pairwise.published.before_s, pairwise.published.after_s) == (438e-3, 322e-6)
    assert (chain.published.before_s, chain.published.after_s) == (18.5e-6, 4.41e-6)


def test_distances_are_squared_for_every_pair() -> None:
    a = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    b = torch.tensor([[3.0, 4.0]])
    for form in (PAIRWISE.loop, PAIRWISE.batched):
        assert form(a, b).tolist() == [[25.0], [13.0]]


def test_the_chain_squares_ten_times() -> None:
    x = torch.tensor([1.0, 2.0**0.0625, 0.999])
    for form in (CHAIN.loop, CHAIN.batched):
        assert form(x).tolist() == pytest.approx([1.0, 2.0**64, 0.999**1024], rel=1e-3)


@pytest.mark.parametrize("case", [PAIRWISE, CHAIN], ids=["pairwise", "chain"])
def test_all_forms_agree(case: Case) -> None:
    forms = {LOOP: case.loop, BATCHED: case.batched, SCRIPTED: torch.jit.script(case.batched)}
    assert agree(case, forms) < 1e-5


def test_a_form_with_another_answer_is_named() -> None:
    wrong = dataclasses.replace(CHAIN, batched=lambda x: x * 1.01)
    with pytest.raises(ParityError, match="batched eager and eager loop give different answers"):
        agree(wrong, {BATCHED: wrong.batched})
    fewer = dataclasses.replace(CHAIN, batched=lambda x: CHAIN.loop(x)[:1])
    with pytest.raises(ParityError, match="chain"):
        agree(fewer, {BATCHED: fewer.batched})


def test_each_form_has_one_time_per_round() -> None:
    taken = timed(CHAIN, {LOOP: CHAIN.loop, BATCHED: CHAIN.batched}, rounds=2)
    assert {name: len(times) for name, times in taken.items()} == {LOOP: 2, BATCHED: 2}


@pytest.mark.soak  # `compare` itself is tested with the same form
def test_the_compiled_form_agrees_and_can_be_profiled(
    package: tuple[Callable[..., Any], Path], tmp_path: Path
) -> None:
    call, _ = package
    assert agree(CHAIN, {"compiled": call}) < 1e-5
    trace, table = profile({"compiled": lambda: call(*CHAIN.inputs)}, tmp_path)
    assert trace.stat().st_size > 0
    assert "whole forward" in table.read_text()


def test_refused_compilation_gives_a_reason(tmp_path: Path) -> None:
    try:
        find_compiler()
    except NotApplicable as why:
        pytest.skip(str(why))

    def surprising(x: torch.Tensor) -> torch.Tensor:
        return x if float(x.sum()) > 0 else -x

    case = dataclasses.replace(CHAIN, batched=surprising)
    with pytest.raises(NotApplicable, match=r"torch\.export or AOTInductor failed: "):
        compiled(case, tmp_path / "compiled.pt2")
