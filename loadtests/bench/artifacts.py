"""The artifacts that the benchmarks serve: models of the catalog, exported by the user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pydantic import ValidationError

from loadtests.bench.environments import ROOT
from loadtests.errors import LoadTestError
from models.manifest import MANIFEST_FILE, Manifest


class ArtifactError(LoadTestError):
    """There is no usable artifact, or it cannot be built; the message says what to do or why."""


def newest_artifact(artifacts: Path, name: str) -> Path:
    """Return the folder of the newest version of a model of the catalog.

    Raises:
        ModelError: if there is none, or it cannot be read.
    """
    files = (artifacts / name).glob(f"*/{MANIFEST_FILE}")
    versions = [int(file.parent.name) for file in files if file.parent.name.isdecimal()]
    if not versions:
        raise ArtifactError(
            f"there is no model {name!r} in {artifacts}; run `make export MODEL={name}` first"
        )
    folder = artifacts / name / str(max(versions))
    try:
        manifest_of(folder)
    except ValidationError as error:
        raise ArtifactError(
            f"{folder / MANIFEST_FILE} is damaged; run `make export` again"
        ) from error
    return folder


def manifest_of(folder: Path) -> Manifest:
    """Read the manifest of an artifact."""
    return Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())


def run(module: str, *arguments: str) -> None:
    """Run a module of this project that builds a model.

    Raises:
        ModelError: if it fails; the message has its output.
    """
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    result = subprocess.run(  # nosec B603 # this project
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise ArtifactError(
            f"`{' '.join(command)}` failed: {(result.stdout + result.stderr)[-1000:]}"
        )
