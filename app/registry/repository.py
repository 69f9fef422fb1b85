"""Artifact folders on disk: which exist, whether they are intact, and which key signed them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from app.errors import ArtifactInvalid, VersionChanged
from app.registry.model_settings import MODEL_NAME
from app.types import ModelId
from models.handlers import CODE_FILE, HandlerManifest
from models.integrity import (
    IntegrityError,
    NotAModel,
    OtherDigest,
    Verifier,
    read_any_artifact,
    read_verified,
)
from models.manifest import MANIFEST_FILE, Manifest
from models.system.contained import printable
from models.tensors import FileName
from models.versions import version_of

NO_MODELS = frozenset({"lost+found"})  # folders of a file system, not of models

STAYS = "the loaded version stays as it is; write changed files as a version with a new number"

# State of a version's files: names, sizes and times.
Stamp: TypeAlias = tuple[tuple[str, int, int, int], ...]


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
        return _read(self, name)


@dataclass(frozen=True, slots=True)
class HandlerArtifact:
    """The artifact of a handler; see `Artifact`."""

    id: ModelId
    folder: Path
    manifest: HandlerManifest
    digest: str
    signed_by: str | None = None

    def read(self, name: FileName) -> bytes:
        return _read(self, name)


def _read(artifact: Artifact | HandlerArtifact, name: FileName) -> bytes:
    try:
        return read_verified(artifact.folder, name, artifact.manifest.files[name])
    except IntegrityError as error:
        raise ArtifactInvalid(str(error)) from error


@dataclass(frozen=True, slots=True)
class Contents:
    """What one look at a repository found.

    Attributes:
        versions: version numbers of each model, newest first.
        unreadable: what is wrong with the folder of a model whose versions cannot be listed.
        ignored: folders that are neither models nor versions because of their names, and files
            with the name of a version; printable, and relative to the repository.
    """

    versions: dict[str, list[int]] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)


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
        """Map each model name to its version numbers, newest first; see `scan`.

        Raises:
            OSError: if the repository itself cannot be read.
        """
        return self.scan().versions

    def scan(self) -> Contents:
        """List the models and their versions; a folder that cannot be read affects no other.

        This reads only names. A version that links out of the repository, or nowhere, is included,
        so that `open` rejects it and the problem is reported.

        Raises:
            OSError: if the repository itself cannot be read; one that does not exist is empty.
        """
        contents = Contents()
        try:
            entries = _entries(self.root)
        except (FileNotFoundError, NotADirectoryError):
            return contents
        for entry in entries:
            is_model_name = MODEL_NAME.fullmatch(entry.name) is not None
            try:
                if not entry.is_dir():
                    if is_model_name and entry.is_symlink() and not os.path.exists(entry.path):
                        contents.unreadable[entry.name] = "it is a link to nothing"
                elif is_model_name:
                    _list_versions(entry, contents)
                elif not (entry.name.startswith(".") or entry.name in NO_MODELS):
                    contents.ignored.add(printable(entry.name))
            except FileNotFoundError:
                continue  # removed meanwhile
            except OSError as error:
                if is_model_name:
                    contents.unreadable[entry.name] = f"it cannot be read: {error.strerror}"
        return contents

    def why_empty(self) -> str:
        """The message for the operator if `versions` finds nothing, with the path and the fix."""
        try:
            return self._why_empty(self.root.absolute())
        except OSError as error:
            return f"{self.root.absolute()} cannot be read: {error.strerror}"

    def _why_empty(self, root: Path) -> str:
        if not root.exists():
            return f"{root} does not exist; `torchlane export` creates it, or choose another folder"
        if not root.is_dir():
            return f"{root} is not a folder; choose the one that contains MODEL/VERSION"
        if (root / MANIFEST_FILE).exists():
            return f"{root} is one version of a model; did you mean {root.parent.parent}?"
        if any(root.glob(f"[1-9]*/{MANIFEST_FILE}")):
            return f"{root} is the folder of one model; did you mean {root.parent}?"
        return f"{root} contains no MODEL/VERSION; `torchlane export` writes one with --out {root}"

    def stamp(self, model: ModelId) -> Stamp:
        """State of a version's files, which changes when they change; empty: none can be listed.

        The time of the last change to a file's status is included: a copy may keep the size and
        the time of the last write.
        """
        try:
            with os.scandir(self.root / model.name / str(model.version)) as entries:
                stats = [(entry.name, _stat(entry)) for entry in entries]
        except OSError:
            return ()
        return tuple(
            sorted((name, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats if s)
        )

    def smallest_first(self, versions: Mapping[str, Sequence[int]]) -> list[str]:
        """The models by the whole MiB of their newest version, so that small ones wait for none.

        Handlers are last, because they call models.

        Args:
            versions: version numbers of each model, newest first.
        """

        def place(name: str) -> tuple[bool, int]:
            files = self.stamp(ModelId(name, versions[name][0]))
            is_handler = any(each[0] == CODE_FILE for each in files)
            return is_handler, sum(each[1] for each in files) >> 20

        return sorted(versions, key=place)

    def open(
        self, model: ModelId, served_digest: str | None = None, *, whole: bool = True
    ) -> Artifact:
        """Open an artifact that must be a model's; see `open_any`.

        Raises:
            ArtifactInvalid: if it is a handler's, and see `open_any`.
        """
        artifact = self.open_any(model, served_digest, whole=whole)
        if isinstance(artifact, HandlerArtifact):
            raise ArtifactInvalid(f"{model}: {NotAModel(artifact.manifest)}")
        return artifact

    def open_any(
        self, model: ModelId, served_digest: str | None = None, *, whole: bool = True
    ) -> Artifact | HandlerArtifact:
        """Check signature and digests, and read the manifest; blocks while it reads whole files.

        Args:
            model: the version.
            served_digest: the digest with which this server already serves the version.
            whole: whether to read all files; else only the manifest is checked.

        Raises:
            ArtifactInvalid: with the file's name, and with both digests if they differ.
            VersionChanged: if the version is served, and its files are no longer those.
        """
        folder = self.root / model.name / str(model.version)
        try:
            manifest, digest, signed_by = read_any_artifact(
                folder, self.root, self._verifier, served_digest, whole=whole
            )
        except OtherDigest as error:
            raise other_files(model, served_digest or "", error.digest) from error
        except IntegrityError as error:
            if served_digest is not None:
                raise VersionChanged(
                    f"{model}: its files changed after it was loaded: {error}; {STAYS}"
                ) from error
            raise ArtifactInvalid(f"{model}: {error}") from error
        if (manifest.model, manifest.version) != (model.name, model.version):
            raise ArtifactInvalid(
                f"{model}: {MANIFEST_FILE} belongs to {manifest.model}/{manifest.version}; "
                "the folder was moved or renamed"
            )
        if isinstance(manifest, HandlerManifest):
            return HandlerArtifact(model, folder, manifest, digest, signed_by)
        return Artifact(model, folder, manifest, digest, signed_by)


def other_files(model: ModelId, served_digest: str, digest: str) -> VersionChanged:
    """The error for files with another digest than the served one."""
    return VersionChanged(
        f"{model}: its files changed after it was loaded: {MANIFEST_FILE} has SHA-256 {digest}, "
        f"the server serves {served_digest}; {STAYS}",
        digest,
    )


def _entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _list_versions(model: os.DirEntry[str], contents: Contents) -> None:
    """List the versions in the folder of a model.

    Raises:
        OSError: if it cannot be read.
    """
    versions = []
    for entry in _entries(model):
        number = version_of(entry.name)
        if number is not None and _may_be_folder(entry):
            versions.append(number)
        elif number is not None or (not entry.name.startswith(".") and _may_be_folder(entry)):
            contents.ignored.add(f"{model.name}/{printable(entry.name)}")
    if versions:
        contents.versions[model.name] = sorted(versions, reverse=True)


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link whose target cannot be examined."""
    try:
        return entry.is_dir() or (entry.is_symlink() and not os.path.exists(entry.path))
    except OSError:
        return True


def _stat(entry: os.DirEntry[str]) -> os.stat_result | None:
    """The state of a file, or of a link to nothing; None if the file was removed meanwhile."""
    for follow in (True, False):
        try:
            return entry.stat(follow_symlinks=follow)
        except OSError:
            continue
    return None
