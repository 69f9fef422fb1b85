"""What the Makefile runs, by a dry run of make."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest

from export.options.artifacts import VARIANTS
from tests.docs.blocks import ROOT


def commands(*arguments: str) -> list[str]:
    """The lines that make would run."""
    # Without the variables of a make that runs the tests, which would print its folders.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    command = ["make", "--dry-run", "--no-print-directory", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("target", ["serve", "serve-python"])
def test_the_first_start_exports_more_than_one_form_of_the_example(target: str) -> None:
    *_, export, _ = commands(target)
    *_, model, _, out, _, variants = shlex.split(export)
    assert (model, out) == ("digits", "artifacts")
    assert {"script", "onnx"} < set(variants.split(",")) < set(VARIANTS) - {"compiled"}


def test_the_first_start_exports_another_model_as_make_export_does() -> None:
    *_, export, _ = commands("serve", "MODEL=pairwise")
    assert shlex.split(export)[-4:] == ["export", "pairwise", "--out", "artifacts"]
    assert commands("export", "MODEL=pairwise")[-1].split()[1:] == shlex.split(export)[-4:]


def test_a_repository_of_ones_own_is_not_exported_to() -> None:
    arguments = "SERVE_ARGS=--port 9000 --model-dir models"
    assert not any("torchlane export" in line for line in commands("serve", arguments))
