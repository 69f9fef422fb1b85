"""Whether every byte of an artifact is as export wrote it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import ValidationError

from models.manifest import DIGEST_FILE, MANIFEST_FILE, SCHEMA_VERSION, Manifest

SHOWN = 100  # characters of a digest file that may hold anything
ADVICE = "the artifact was altered or damaged, export it again"


class IntegrityError(ValueError):
    """A file is missing, altered or not understood; the message names it, and both digests."""


def read_artifact(folder: Path) -> tuple[Manifest, str]:
    """Check every digest; reads all files, large ones in pieces.

    Returns:
        the manifest, and its SHA-256 in hex, which stands for the whole artifact.

    Raises:
        IntegrityError: at the first file that is not what it must be.
    """
    text = _read(folder / MANIFEST_FILE)
    digest = hashlib.sha256(text).hexdigest()
    wanted = _read(folder / DIGEST_FILE).decode("ascii", "replace").rstrip("\n")
    if wanted != f"{digest}  {MANIFEST_FILE}":  # as sha256sum writes it
        raise IntegrityError(
            f"{MANIFEST_FILE} has SHA-256 {digest}, {DIGEST_FILE} says {wanted[:SHOWN]!r}; {ADVICE}"
        )
    manifest = _parse(text)
    for name, file in manifest.files.items():
        got = sha256_of(folder / name)
        if got != file.sha256:
            raise IntegrityError(
                f"{name} has SHA-256 {got}, the manifest says {file.sha256}; {ADVICE}"
            )
    return manifest, digest


def sha256_of(path: Path) -> str:
    """In pieces: weights may be larger than what memory is left.

    Raises:
        IntegrityError: if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> IntegrityError:
    return IntegrityError(f"{path.name} cannot be read: {error.strerror}")


def _parse(text: bytes) -> Manifest:
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        if first["loc"] == ("schema_version",):
            given = "none" if first["type"] == "missing" else repr(first["input"])
            raise IntegrityError(
                f"{MANIFEST_FILE} has schema_version {given}, this release reads "
                f"{SCHEMA_VERSION}; export the model with the matching release"
            ) from error
        where = (MANIFEST_FILE, ".".join(str(part) for part in first["loc"]))  # none: the whole
        raise IntegrityError(f"{', '.join(filter(None, where))}: {first['msg']}") from error
