"""Artifact folders on disk: which exist, and whether every byte is as export wrote it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from app.errors import ArtifactInvalid
from app.types import ModelId
from models.integrity import IntegrityError, read_artifact
from models.manifest import MANIFEST_FILE, Manifest

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
VERSION = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact whose every file had the right digest when it was opened.

    Attributes:
        digest: SHA-256 of the manifest, in hex; it stands for the whole artifact.
    """

    id: ModelId
    folder: Path
    manifest: Manifest
    digest: str


class Repository:
    """Reads `root/MODEL/VERSION`; never writes.

    Args:
        root: the folder that export writes to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def versions(self) -> dict[str, list[int]]:
        """Model name -> its version numbers, newest first; what else lies there is passed over."""
        found: dict[str, list[int]] = {}
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if not MODEL_NAME.fullmatch(folder.name) or not folder.is_dir():
                continue
            names = (entry.name for entry in folder.iterdir() if entry.is_dir())
            versions = sorted((int(n) for n in names if VERSION.fullmatch(n)), reverse=True)
            if versions:
                found[folder.name] = versions
        return found

    def open(self, model: ModelId) -> Artifact:
        """Check every digest and read the manifest. Reads whole files: call it off the event loop.

        Raises:
            ArtifactInvalid: naming the file, and both digests where they differ.
        """
        folder = self.root / model.name / str(model.version)
        try:
            manifest, digest = read_artifact(folder)
        except IntegrityError as error:
            raise ArtifactInvalid(f"{model}: {error}") from error
        if (manifest.model, manifest.version) != (model.name, model.version):
            raise ArtifactInvalid(
                f"{model}: {MANIFEST_FILE} is of {manifest.model}/{manifest.version}; "
                "the folder was moved or renamed"
            )
        return Artifact(model, folder, manifest, digest)
