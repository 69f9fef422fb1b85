"""Writes an artifact folder: under a temporary name, synced, then renamed, so it is complete."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from export.errors import NO_SPACE, ExportError, UsageError
from models.handlers import HandlerManifest
from models.manifest import (
    DIGEST_FILE,
    MANIFEST_FILE,
    SIGNATURE_FILE,
    FileDigest,
    Manifest,
    check_manifest_size,
)
from models.system.durable import sync
from models.system.scratch import scratch_folder
from models.versions import MAX_VERSION, version_of

Sign = Callable[[bytes], bytes]  # a manifest -> the content of its `manifest.sig`


def versions(model_folder: Path) -> list[int]:
    """Return the version numbers that are taken in a model's folder, ascending.

    A file or a link takes a number too. Other names, such as `v2` or `20261125120000`, which no
    server reads, do not count.

    Raises:
        UsageError: if the folder cannot be read.
    """
    try:
        names = os.listdir(model_folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UsageError(f"cannot read {model_folder}: {error.strerror}") from error
    return sorted(number for name in names if (number := version_of(name)) is not None)


def any_artifact(out: Path) -> Path | None:
    """Return the folder of any artifact in the repository that can be read; None: there is none."""
    with contextlib.suppress(OSError):
        for model in sorted(out.iterdir()):
            with contextlib.suppress(OSError, UsageError):  # this folder only
                for version in versions(model):
                    if (model / str(version) / MANIFEST_FILE).is_file():
                        return model / str(version)
    return None


def choose_version(model_folder: Path, version: int | None) -> int:
    """Return the wanted version, or the one after the highest.

    Raises:
        UsageError: if the wanted version is out of range or exists already, if no number is left,
            or if the folder cannot be read.
    """
    numbers = versions(model_folder)
    following = numbers[-1] + 1 if numbers else 1
    if version is None and following > MAX_VERSION:
        raise UsageError(
            f"{model_folder} has the highest version, {MAX_VERSION}; choose a lower one that is "
            "free with --version, and pin it with TORCHLANE_VERSIONS"
        )
    if version is None:
        return following
    if not 1 <= version <= MAX_VERSION:
        raise UsageError(f"--version must be 1 to {MAX_VERSION}, got {version}")
    if version in numbers:
        raise UsageError(
            f"version {version} exists in {model_folder}, and artifacts never change; "
            f"omit --version to write version {following}"
        )
    return version


def digest_of(path: Path) -> FileDigest:
    """Return size and SHA-256 of a file."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return FileDigest(sha256=sha256, bytes=path.stat().st_size)


def write_file(file: Path, content: bytes | memoryview | BinaryIO) -> None:
    """Write a whole file; torch's own writers would abort the process if the disk is full.

    Args:
        file: to write.
        content: of the file; or another file, which is copied.

    Raises:
        ExportError: if it cannot be written.
    """
    try:
        with file.open("wb") as target:
            if isinstance(content, bytes | memoryview):
                target.write(content)
            else:
                content.seek(0)
                shutil.copyfileobj(content, target)
    except OSError as error:
        raise ExportError(f"cannot write {file.name}: {error.strerror}") from error


@contextlib.contextmanager
def staging_folder(out: Path, model: str) -> Iterator[Path]:
    """Provide a temporary folder next to a model's versions; always removed: `scratch_folder`.

    Raises:
        UsageError: if the folder cannot be created or written to.
        ExportError: if the disk is full.
    """
    target = out / model
    new = [folder for folder in (target, *target.parents) if not folder.exists()]
    stack = contextlib.ExitStack()
    try:
        try:
            target.mkdir(parents=True, exist_ok=True)
            staging = stack.enter_context(scratch_folder(".export-", target))
        except OSError as error:
            kind = ExportError if error.errno in NO_SPACE else UsageError
            raise kind(f"cannot write to {target}: {error.strerror}") from error
        with stack:
            yield staging
    finally:
        with contextlib.suppress(OSError):  # a failed first export leaves no empty folder behind
            for folder in new:
                folder.rmdir()


def publish(staging: Path, manifest: Manifest | HandlerManifest, sign: Sign | None = None) -> Path:
    """Write manifest and digest into the staging folder and rename it to its version, durably.

    Args:
        staging: has all other files already.
        manifest: of the artifact.
        sign: returns the content of the signature file; None: not signed.

    Raises:
        ExportError: if the version appeared meanwhile, or cannot be written.
    """
    target = staging.parent / str(manifest.version)
    text = manifest.model_dump_json(indent=2).encode()
    try:
        check_manifest_size(text)
    except ValueError as error:
        raise ExportError(
            f"a server could not read the manifest, which {error}; use fewer or smaller golden "
            "examples, fewer labels, or shorter training curves"
        ) from error
    try:
        (staging / MANIFEST_FILE).write_bytes(text)
        digest = f"{hashlib.sha256(text).hexdigest()}  {MANIFEST_FILE}\n"  # as sha256sum writes it
        (staging / DIGEST_FILE).write_text(digest, encoding="ascii")
        if sign is not None:
            (staging / SIGNATURE_FILE).write_bytes(sign(text))
        for path in [*staging.iterdir(), staging]:
            sync(path)
        staging.chmod(0o755)  # mkdtemp creates it private; a server may run as another user
        if target.exists():
            raise ExportError(f"another export has written {target} meanwhile; run this one again")
        staging.rename(target)
        sync(target.parent)
    except OSError as error:
        raise ExportError(f"cannot write {target}: {error.strerror}") from error
    return target
