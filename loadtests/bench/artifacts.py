"""The artifacts that the benchmarks serve: models of the catalog, exported by the user."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from loadtests.errors import LoadTestError
from models.manifest import MANIFEST_FILE, Manifest


class ModelError(LoadTestError):
    """There is no usable artifact; the message says how to make one."""


def newest_artifact(artifacts: Path, name: str) -> Path:
    """Return the folder of the newest version of a model of the catalog.

    Raises:
        ModelError: if there is none, or it cannot be read.
    """
    files = (artifacts / name).glob(f"*/{MANIFEST_FILE}")
    versions = [int(file.parent.name) for file in files if file.parent.name.isdecimal()]
    if not versions:
        raise ModelError(
            f"there is no model {name!r} in {artifacts}; run `make export MODEL={name}` first"
        )
    folder = artifacts / name / str(max(versions))
    try:
        manifest_of(folder)
    except ValidationError as error:
        raise ModelError(f"{folder / MANIFEST_FILE} is damaged; run `make export` again") from error
    return folder


def manifest_of(folder: Path) -> Manifest:
    """Read the manifest of an artifact."""
    return Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
