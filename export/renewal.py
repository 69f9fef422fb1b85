"""Writes new versions of an existing artifact, with another plan or with a signature."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from export.artifact import choose_version, digest_of, publish, staging_folder
from export.errors import ExportError, UsageError
from export.keys import Signer
from export.pipeline import (
    REPORT_FILE,
    ExportedArtifact,
    finish,
    open_any_artifact,
    open_artifact,
    with_changes,
)
from export.proving.prove import Stage
from export.timing import tune
from models.handlers import HandlerManifest
from models.manifest import SIGNATURE_FILE, Manifest
from models.signatures import TrustedKeys

M = TypeVar("M", Manifest, HandlerManifest, Manifest | HandlerManifest)


def tune_again(folder: Path, options: tune.TuneOptions, stage: Stage) -> ExportedArtifact:
    """Time an artifact's variants on this machine, and write the plan as a new version.

    Raises:
        UsageError: if the artifact is not intact, or no variant has the wanted precision.
        ExportError: if the new version cannot be written.
    """
    with _staged_copy(folder, open_artifact(folder)) as (old, staging, version):
        if options.precision is None and old.plan is not None:
            options = dataclasses.replace(options, precision=old.plan.precision)
        plan = tune.measure(staging, old, options, stage("timing"))
        return finish(staging, with_changes(old, plan=plan, version=version))


def sign_anew(folder: Path, signer: Signer, trusted_keys: TrustedKeys | None = None) -> Path:
    """Sign an artifact, as a new version because artifacts never change.

    An existing signature must be valid, or an altered artifact would become trusted.

    Args:
        folder: an artifact, signed or not.
        signer: signs the new version, and is trusted to have signed the old one.
        trusted_keys: other accepted keys; then a signature is required. None: only the signer's.

    Returns:
        The folder of the new version.

    Raises:
        UsageError: if the artifact is not intact, or its signature is not trusted.
        ExportError: if the new version cannot be written.
    """
    verifier = None
    if trusted_keys is not None:
        verifier = signer.own.and_also(trusted_keys)
    elif os.path.lexists(folder / SIGNATURE_FILE):
        verifier = signer.own
    with _staged_copy(folder, open_any_artifact(folder, verifier)) as (old, staging, version):
        if isinstance(old, HandlerManifest):
            new = HandlerManifest.model_validate(old.model_dump() | {"version": version})
            return publish(staging, new, signer.sign)
        return finish(staging, with_changes(old, version=version), signer.sign).folder


@contextlib.contextmanager
def _staged_copy(folder: Path, old: M) -> Iterator[tuple[M, Path, int]]:
    """Provide an artifact's manifest, a staging copy of its files, and the next version number."""
    folder = folder.resolve()  # "." has no parents to write to
    if folder.parent.name != old.model:
        raise UsageError(
            f"{folder} has the model {old.model!r}, so its new version would not be next to it; "
            "keep artifacts in folders named MODEL/VERSION"
        )
    version = choose_version(folder.parent, None)
    with staging_folder(folder.parent.parent, old.model) as staging:
        _copy(folder, old, staging)
        yield old, staging, version


def _copy(folder: Path, manifest: Manifest | HandlerManifest, staging: Path) -> None:
    """Copy everything except the report, which depends on the version and the plan."""
    for name, digest in manifest.files.items():
        if name == REPORT_FILE:
            continue
        try:
            shutil.copyfile(folder / name, staging / name)
            copy_digest = digest_of(staging / name)
        except OSError as error:
            raise ExportError(f"cannot copy {folder / name}: {error.strerror}") from error
        if copy_digest != digest:
            raise ExportError(f"{folder / name} changed while it was copied; run this again")
