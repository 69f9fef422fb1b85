"""Exports of milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from export.pipeline import ExportedArtifact, ExportJob, export
from export.proving.prove import ProofOptions
from export.timing.tune import TuneOptions
from models.definitions.definition import Definition, Progress
from tests.unit.export.definitions import CATALOG, quiet


def stage(name: str) -> Progress:
    """The progress of an export without a terminal."""
    return quiet


def job(
    out: Path, model: Definition = CATALOG["tiny"], *variants: str, **changes: Any
) -> ExportJob:
    """A job for `tiny`: `script` alone and batches of up to 3 by default."""
    fields: dict[str, Any] = {
        "proof": ProofOptions(variants or ("script",), max_batch=3),
        "tuning": TuneOptions(max_batch=3, threads=1),
    }
    return ExportJob("tiny", model, out, **(fields | changes))


def make(
    out: Path, model: Definition = CATALOG["tiny"], *variants: str, **changes: Any
) -> ExportedArtifact:
    return export(job(out, model, *variants, **changes), stage)


def content(folder: Path) -> dict[str, bytes]:
    """What the files of a folder hold."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
