"""Artifact folders on disk: which exist, and whether every byte is as export wrote it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from app.errors import ArtifactInvalid
from app.types import ModelId
from models.manifest import DIGEST_FILE, MANIFEST_FILE, SCHEMA_VERSION, Manifest

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
        text = _read(model, folder / MANIFEST_FILE)
        digest = hashlib.sha256(text).hexdigest()
        wanted = _read(model, folder / DIGEST_FILE).decode("ascii", "replace").rstrip("\n")
        if wanted != f"{digest}  {MANIFEST_FILE}":  # as sha256sum writes it
            raise ArtifactInvalid(
                f"{model}: {MANIFEST_FILE} has SHA-256 {digest}, {DIGEST_FILE} says {wanted}; "
                "the artifact was altered or damaged, export it again"
            )
        manifest = _parse(model, text)
        if (manifest.model, manifest.version) != (model.name, model.version):
            raise ArtifactInvalid(
                f"{model}: {MANIFEST_FILE} is of {manifest.model}/{manifest.version}; "
                "the folder was moved or renamed"
            )
        for name, file in manifest.files.items():
            got = _sha256(model, folder / name)
            if got != file.sha256:
                raise ArtifactInvalid(
                    f"{model}: {name} has SHA-256 {got}, the manifest says {file.sha256}; "
                    "the artifact was altered or damaged, export it again"
                )
        return Artifact(model, folder, manifest, digest)


def _read(model: ModelId, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(model, path, error) from error


def _sha256(model: ModelId, path: Path) -> str:
    """In pieces: weights may be larger than what memory is left."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(model, path, error) from error


def _unreadable(model: ModelId, path: Path, error: OSError) -> ArtifactInvalid:
    return ArtifactInvalid(f"{model}: {path.name} cannot be read: {error.strerror}")


def _parse(model: ModelId, text: bytes) -> Manifest:
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        if first["loc"] == ("schema_version",):
            raise ArtifactInvalid(
                f"{model}: {MANIFEST_FILE} has schema_version {first['input']!r}, this server "
                f"reads {SCHEMA_VERSION}; export the model with the matching release"
            ) from error
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactInvalid(f"{model}: {MANIFEST_FILE}, {where}: {first['msg']}") from error
