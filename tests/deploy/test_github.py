"""deploy/github/model.yml: its steps run as GitHub's runner would run them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.e2e.forking import write_command
from tests.e2e.server import free_port

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / "deploy/github/model.yml").read_text())
STEPS = {each["name"]: each for each in WORKFLOW["jobs"]["model"]["steps"] if "name" in each}
DOCKER = '#!/bin/sh\n{ echo "$@"; [ "$1" != login ] || cat; } >> docker.log\n'  # records its calls


class Runner:
    """Runs steps in one folder, with the variables of the workflow and of GitHub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "docker").write_text(DOCKER)
        (folder / "docker").chmod(0o755)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TORCHLANE_")}
        self.variables = {
            **inherited,
            **WORKFLOW["env"],
            **write_command(folder),
            "PYTHONPATH": str(ROOT),
            "MODEL": "pairwise",
            "EXPORT_ARGS": "--variants script --max-batch-size 2 --threads 1",
            "PORT": str(free_port()),
            "BUDGET_S": "4",
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            "GITHUB_REPOSITORY": "Some/Models",
            "GITHUB_SHA": "0123456789abcdef",
            "GITHUB_ACTOR": "someone",
            "TOKEN": "secret",
        }

    def run(self, step: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a step."""
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]],
            cwd=self.folder,
            env=self.variables | variables,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """A runner whose model is exported."""
    runner = Runner(tmp_path_factory.mktemp("runner"))
    done = runner.run("Export")
    assert done.returncode == 0, done.stderr
    return runner


def test_the_report_is_in_the_summary(runner: Runner) -> None:
    done = runner.run("Check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pairwise version 1" in (runner.folder / "summary.md").read_text()


@pytest.mark.soak  # measures
def test_the_capacity_is_measured(runner: Runner) -> None:
    done = runner.run("Measure", MIN_CAPACITY="10", SLO_MS="500", BUDGET_S="12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((runner.folder / "reports").rglob("*.html"))  # what the next step uploads


@pytest.mark.soak
@pytest.mark.slow
def test_the_load_tests_exit_code_is_the_jobs(runner: Runner) -> None:
    """On a ready server, with a report to upload."""
    done = runner.run("Measure", MIN_CAPACITY="1000", SLO_MS="0.001")
    assert done.returncode == 1, done.stderr
    assert list((runner.folder / "reports").rglob("*.html"))


def test_the_image_is_pushed(runner: Runner) -> None:
    done = runner.run("Push")
    assert done.returncode == 0, done.stderr
    image = "ghcr.io/some/models/torchlane-model:pairwise-0123456789ab"
    assert (runner.folder / "docker.log").read_text().splitlines() == [
        f"build --file deploy/kubernetes/model.Dockerfile --tag {image} artifacts",
        "login ghcr.io --username someone --password-stdin",
        "secret",
        f"push {image}",
    ]
    assert image in (runner.folder / "summary.md").read_text()
    assert (ROOT / "deploy/kubernetes/model.Dockerfile").exists()


def test_the_extras_that_it_installs_exist() -> None:
    (extras,) = re.findall(r"'\.\[([a-z,]+)\]'", STEPS["Install"]["run"])
    project = (ROOT / "pyproject.toml").read_text()
    assert [each for each in extras.split(",") if f"\n{each} = [" not in project] == []
