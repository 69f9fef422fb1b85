"""Schemathesis finds nothing: every operation of the OpenAPI document of a real server, all checks.

It runs as its own command line, in a process of its own: all its phases (examples, coverage,
fuzzing, stateful), and none of its threads, hooks and warnings in ours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import nn

from app.access.entries import SCOPES, make_key
from tests.artifacts import write_artifact, write_small
from tests.e2e.server import running
from tests.kinds import write_pictures

HERE = Path(__file__).parent
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
CASES = 5  # of each operation, and as many again in the stateful phase
FEW_CASES, MANY_CASES = 2, 1000


class Tame(nn.Module):
    """x [n, 2] -> y [n, 2], finite whatever comes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return torch.tanh(x)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with labels, numbers of one small shape, several inputs with a free dimension."""
    folder = tmp_path_factory.mktemp("models")
    write_pictures(folder)
    write_artifact(folder, "tame", module=Tame())
    write_small(folder, ["script"], free=True)
    return folder


# Every kind of default model has a body that the document tells exactly.
@pytest.mark.soak
@pytest.mark.parametrize("default_model", ["tame", "pictures", "small"])
def test_schemathesis_finds_nothing(models: Path, tmp_path: Path, default_model: str) -> None:
    found = schemathesis(models, tmp_path, default_model, seed=1, cases=CASES)
    assert found.returncode == 0, found.stdout[-8000:]
    assert tried(found.stdout) > 15 * CASES, found.stdout[-8000:]


@pytest.mark.timeout(900)  # it takes long on a busy machine
def test_schemathesis_finds_nothing_with_a_key(models: Path, tmp_path: Path) -> None:
    """Calls without a key, or with another one, are refused: Schemathesis tries them too."""
    secret, line = make_key("schemathesis", sorted({*SCOPES} - {"admin"}))  # it would unload
    found = schemathesis(
        *(models, tmp_path, "tame", f"--header=Authorization: Bearer {secret}"),
        seed=1,
        cases=FEW_CASES,
        settings={"api_keys": line, "open_metrics": "false"},
    )
    assert found.returncode == 0, found.stdout[-8000:]
    assert tried(found.stdout) > 15 * FEW_CASES, found.stdout[-8000:]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("default_model", ["tame", "pictures", "small"])
@pytest.mark.parametrize("seed", [2, 3])
def test_schemathesis_finds_nothing_in_many_cases(
    models: Path, tmp_path: Path, default_model: str, seed: int
) -> None:
    found = schemathesis(models, tmp_path, default_model, seed=seed, cases=MANY_CASES)
    assert found.returncode == 0, found.stdout[-8000:]


def tried(told: str) -> int:
    """How many cases there were, by what it says at the end; of each operation some."""
    (selected, total), (cases,) = (
        map(int, re.search(pattern, told).groups())  # type: ignore[union-attr]  # it says so
        for pattern in (r"(\d+) selected / (\d+) total", r"(\d+) generated")
    )
    assert selected == total - 1  # all but /live
    return cases


def schemathesis(
    models: Path,
    scratch: Path,
    default_model: str,
    *options: str,
    seed: int,
    cases: int,
    settings: Mapping[str, str] = NO_SETTINGS,
) -> subprocess.CompletedProcess[str]:
    """Run it against a server with this default model."""
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "--config-file"),
        *(str(HERE / "schemathesis.toml"), "run", "--checks=all", "--continue-on-failure"),
        "--exclude-path=/live",  # its answer never ends
        *(f"--seed={seed}", f"--max-examples={cases}", "--generation-database=none", "--no-color"),
    ]
    with running(models, scratch / "log", default_model=default_model, **settings) as server:
        return subprocess.run(
            [*command, *options, f"{server.url}/openapi.json"],
            cwd=scratch,
            env={**os.environ, "SCHEMATHESIS_HOOKS": str(HERE / "hooks.py")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
