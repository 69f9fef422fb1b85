"""`python -m export compare`."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from torch._inductor import config

from export.comparison import compare
from export.comparison.compare_cases import cases
from export.variants.base import NotApplicable
from export.variants.compiled import find_compiler

FORMS = ("eager loop", "batched eager", "scripted")
# Runs the first case, small, where neither PATH nor CXX leads to a compiler.
WITHOUT_COMPILER = """
from rich.console import Console
from export.comparison.compare import compare
from export.comparison.compare_cases import cases
compare(cases(3, 4)[0], Console(width=200), rounds=1, graph=True)
"""


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return parser.parse_args(arguments)


def test_the_options_have_defaults_and_must_be_positive(capsys: pytest.CaptureFixture[str]) -> None:
    assert vars(parsed()) == {"rounds": compare.ROUNDS, "threads": 1, "graph": False}
    assert vars(parsed("--rounds", "3", "--threads", "2", "--graph"))["threads"] == 2
    for wrong in ("0", "abc", "1.5"):
        with pytest.raises(SystemExit):
            parsed("--rounds", wrong)
        told = f"argument --rounds: must be a whole number of at least 1, got '{wrong}'"
        assert told in capsys.readouterr().err


@pytest.fixture(scope="module")
def chain() -> str:
    """What is printed of the chain, with everything on."""
    try:
        find_compiler()
    except NotApplicable as why:
        pytest.skip(str(why))
    out = io.StringIO()
    case = cases(rows=3, columns=4)[1]
    # For one package it takes longer to compile headers beforehand.
    quick = {
        "aot_inductor.precompile_headers": False,
        "aot_inductor.compile_wrapper_opt_level": "O0",
    }
    with config.patch(quick):
        compare.compare(case, Console(file=out, width=80), rounds=2, graph=True)
    return out.getvalue()


def test_every_form_and_step_has_its_row(chain: str) -> None:
    rows = chain.splitlines()
    for form in (*FORMS, "compiled"):
        assert any(row.strip().startswith(form) and "us" in row for row in rows), form
    for step in ("batching", "scripting", "compiling"):
        assert any(row.strip().startswith(step) and "->" in row for row in rows), step
    assert "largest difference between the answers: " in chain
    assert "batched eager -> compiled" in chain


def test_the_published_ratio_is_next_to_its_step(chain: str) -> None:
    row = next(row for row in chain.splitlines() if row.strip().startswith("scripting"))
    assert "18.5 us -> 4.41 us" in row
    below = chain.splitlines()[chain.splitlines().index(row) + 1]
    assert "4.20x" in below


def test_the_graphs_are_printed_on_request(chain: str) -> None:
    assert "What TorchScript executes here: " in chain
    assert "1 fused group" in chain
    assert "TensorExprGroup_0" in chain
    kernels = chain.partition("What the compiler generated: ")[2]
    assert kernels.count('extern "C"') == 1
    assert kernels.count("for(") <= 2  # the vector loop, and a tail where the vector is short
    assert "/tmp" not in kernels
    assert kernels.strip().endswith("}")


def test_other_forms_are_compared_without_a_compiler() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "CXX"}
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER],
        env=environment | {"PATH": "/nonexistent", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert "compiled: left out: it needs a C++ compiler and there is none" in found.stdout
    for form in FORMS:
        assert form in found.stdout
    assert "438 ms -> 322 us" in found.stdout
    assert "compiling" not in found.stdout
    assert "What the compiler generated" not in found.stdout
    assert found.stderr == ""


def test_command_names_the_machine_and_explains_ratios() -> None:
    threads = torch.get_num_threads()
    out = io.StringIO()
    compare.run(parsed("--threads", "1"), Console(file=out, width=400), [])
    assert f"1 thread, torch {torch.__version__}" in out.getvalue()
    assert compare.WHY_RATIOS_DIFFER in out.getvalue()
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (2.5, "2.50 s"),
        (0.438, "438 ms"),
        (322e-6, "322 us"),
        (4.41e-6, "4.41 us"),
        (5e-8, "50.0 ns"),
    ],
)
def test_durations_have_three_digits_and_a_unit(seconds: float, wanted: str) -> None:
    assert compare.duration(seconds) == wanted
