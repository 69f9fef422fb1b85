"""On real clusters of Ray in this machine; the figures are printed (`-s`)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients.environments import run
from tests.clients.models import write_digits
from tests.ray.cluster import ROOT
from tests.ray.environment import environment

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def ray() -> Path:
    """The environment that has Ray."""
    found = environment()
    if found is None:
        pytest.skip("Ray is not installed: `make ray-env` makes an environment with it")
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, trained_digits: Path) -> Path:
    """A repository with digits."""
    folder = tmp_path_factory.mktemp("models")
    write_digits(folder, trained_digits)
    return folder


@pytest.fixture(autouse=True)
def _found_by_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["-", "--ray", "local"], "a cluster cannot read -"),
        (["rows.npy", "--ray", "local", "--workers", "1"], "--workers cannot be used with --ray"),
        (["rows.npy", "--ray", "nowhere"], "--ray nowhere: "),
    ],
)
def test_an_error_is_one_sentence(
    ray: Path, models: Path, tmp_path: Path, given: list[str], told: str
) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((1, 1, 32, 32), np.float32))
    command = [str(ray / "bin" / "python"), "-m", "app.bulk", "digits", *given]
    command += ["--model-dir", str(models), "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    lines = done.stderr.decode().splitlines()
    assert (done.returncode in {1, 2}, len(lines)) == (True, 1), lines
    assert told in lines[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_on_one_node(ray: Path, models: Path, tmp_path: Path) -> None:
    told = scored(ray, models, 6000, tmp_path, "one")
    assert told["errors"] == 6
    assert len(set(told["digests"].values())) == 1


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_run_survives_a_killed_node(ray: Path, models: Path, tmp_path: Path) -> None:
    told = scored(ray, models, 60_000, tmp_path, "two")
    assert told["errors"] == 60
    assert told["digests"].keys() == {"here", "there", "less"}
    assert len(set(told["digests"].values())) == 1
    assert told["shards_at_the_kill"] < told["shards"]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_service(ray: Path, models: Path) -> None:
    lines = run(ray, "-m", "tests.ray.serving", str(models), "digits").splitlines()
    told = json.loads(next(line for line in lines if line.startswith("{")))
    print(told)  # noqa: T201
    assert told["nothing"].keys() == {"right"}
    assert told["a_replica_killed"]["right"] > 0
    assert "wrong" not in told["a_replica_killed"]
    assert told["rolling_update"].keys() == {"right"}


def scored(ray: Path, models: Path, rows: int, folder: Path, nodes: str) -> dict[str, Any]:
    """What tests/ray/scoring.py told."""
    command = [str(ray / "bin" / "python"), "-m", "tests.ray.scoring", str(models), "digits"]
    command += [str(rows), str(folder), nodes]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(told)  # noqa: T201
    return told
