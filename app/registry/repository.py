"""Artifact folders on disk: which exist, whether they are intact, and which key signed them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from app.errors import ArtifactInvalid
from app.registry.model_settings import MODEL_NAME
from app.types import ModelId
from models.integrity import IntegrityError, Verifier, read_artifact, read_verified
from models.manifest import MANIFEST_FILE, Manifest
from models.tensors import FileName

VERSION = re.compile(r"[1-9][0-9]{0,8}")

# State of a version's files: names, sizes and times.
Stamp: TypeAlias = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact; all its files had the right digests when it was opened.

    Attributes:
        digest: SHA-256 of the manifest, in hex; it identifies the whole artifact.
        signed_by: fingerprint of the trusted key that signed it; None if no keys are set.
    """

    id: ModelId
    folder: Path
    manifest: Manifest
    digest: str
    signed_by: str | None = None

    def read(self, name: FileName) -> bytes:
        """The bytes of a file, checked again since it may have changed.

        Raises:
            ArtifactInvalid: if it differs from the manifest.
        """
        try:
            return read_verified(self.folder, name, self.manifest.files[name])
        except IntegrityError as error:
            raise ArtifactInvalid(str(error)) from error


class Repository:
    """Reads `root/MODEL/VERSION`; never writes, and opens no file outside the root.

    Args:
        root: the folder that export writes to.
        verifier: checks signatures; if None, they are neither required nor checked.
    """

    def __init__(self, root: Path, verifier: Verifier | None = None) -> None:
        self.root = root
        self._verifier = verifier

    def versions(self) -> dict[str, list[int]]:
        """Map each model name to its version numbers, newest first; ignore other entries.

        This reads only names. A folder that links out of the repository is included, so that `open`
        rejects it and the problem is reported.
        """
        found: dict[str, list[int]] = {}
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if not MODEL_NAME.fullmatch(folder.name) or not folder.is_dir():
                continue
            names = (entry.name for entry in folder.iterdir() if entry.is_dir())
            versions = sorted((int(n) for n in names if VERSION.fullmatch(n)), reverse=True)
            if versions:
                found[folder.name] = versions
        return found

    def why_empty(self) -> str:
        """The message for the operator if `versions` finds nothing, with the path and the fix."""
        root = self.root.absolute()
        if not root.exists():
            return f"{root} does not exist; `python -m export` creates it, or choose another folder"
        if not root.is_dir():
            return f"{root} is not a folder; choose the one that contains MODEL/VERSION"
        if (root / MANIFEST_FILE).exists():
            return f"{root} is one version of a model; did you mean {root.parent.parent}?"
        if any(root.glob(f"[1-9]*/{MANIFEST_FILE}")):
            return f"{root} is the folder of one model; did you mean {root.parent}?"
        return f"{root} contains no MODEL/VERSION; `python -m export` writes one with --out {root}"

    def stamp(self, model: ModelId) -> Stamp:
        """State of a version's files (names, sizes and times), which changes when they change."""
        try:
            with os.scandir(self.root / model.name / str(model.version)) as entries:
                stats = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        except OSError:
            return ()
        return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))

    def open(self, model: ModelId) -> Artifact:
        """Check signature and digests, and read the manifest; blocks while it reads whole files.

        Raises:
            ArtifactInvalid: with the file's name, and with both digests if they differ.
        """
        folder = self.root / model.name / str(model.version)
        try:
            manifest, digest, signed_by = read_artifact(folder, self.root, self._verifier)
        except IntegrityError as error:
            raise ArtifactInvalid(f"{model}: {error}") from error
        if (manifest.model, manifest.version) != (model.name, model.version):
            raise ArtifactInvalid(
                f"{model}: {MANIFEST_FILE} belongs to {manifest.model}/{manifest.version}; "
                "the folder was moved or renamed"
            )
        return Artifact(model, folder, manifest, digest, signed_by)
