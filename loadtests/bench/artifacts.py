"""The artifact that the servers serve."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from models.manifest import MANIFEST_FILE, Manifest

MODEL = "digits"


def newest_artifact(artifacts: Path) -> Path:
    """The folder of the newest version of digits.

    Raises:
        ValueError: if there is none, or none that can be read.
    """
    versions = [
        int(file.parent.name)
        for file in (artifacts / MODEL).glob(f"*/{MANIFEST_FILE}")
        if file.parent.name.isdecimal()
    ]
    if not versions:
        raise ValueError(f"there is no model {MODEL!r} in {artifacts}; run `make export` first")
    folder = artifacts / MODEL / str(max(versions))
    try:
        Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except ValidationError as error:
        raise ValueError(f"{folder / MANIFEST_FILE} is damaged; run `make export` anew") from error
    return folder
