"""Checks that every byte of an artifact is as export wrote it, and which key signed it."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from pydantic import ValidationError

from models.handlers import HandlerManifest, is_handler
from models.manifest import (
    DIGEST_FILE,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    SCHEMA_VERSION,
    SIGNATURE_FILE,
    FileDigest,
    Manifest,
    check_manifest_size,
)
from models.system.contained import FileRejected, open_inside, printable, read_inside, size_of

SHOWN_CHARACTERS = 100  # characters of a file with unknown content
PIECE = 256 * 1024
MAX_MISTAKES = 1000  # of a manifest
MAX_SMALL_BYTES = 4096  # of a digest or a signature
ADVICE = "the artifact was altered or damaged; export it again"


class IntegrityError(ValueError):
    """A file is missing, altered or unsupported; the message names it, and both digests."""


class OtherDigest(IntegrityError):
    """The artifact is another one than required.

    Attributes:
        digest: of the artifact that was found.
    """

    def __init__(self, digest: str, expected: str) -> None:
        super().__init__(f"{MANIFEST_FILE} has SHA-256 {digest}, not {expected}")
        self.digest = digest


class Untrusted(IntegrityError):
    """The manifest has no signature from a trusted key."""


class NotAModel(IntegrityError):
    """The artifact is intact, but it is a handler where a model is needed."""

    def __init__(self, manifest: HandlerManifest) -> None:
        super().__init__(
            f"{manifest.model}/{manifest.version} is a handler, which has no network: this needs a "
            "model"
        )


class Verifier(Protocol):
    """Checks whether a manifest was signed by a trusted key."""

    def verify(self, manifest: bytes, signature: bytes | None) -> str:
        """Check a signature.

        Args:
            manifest: the bytes of the manifest.
            signature: the bytes of the signature's file; None: there is no such file.

        Returns:
            the fingerprint of the signing key.

        Raises:
            Untrusted: with the reason.
        """


class IntactAny(NamedTuple):
    """An unaltered artifact of a model or of a handler; see `Intact`."""

    manifest: Manifest | HandlerManifest
    digest: str
    signed_by: str | None


class Intact(NamedTuple):
    """An unaltered artifact of a model.

    Attributes:
        digest: SHA-256 of the manifest in hex, which identifies the whole artifact.
        signed_by: fingerprint of the trusted key that signed it; None: not checked.
    """

    manifest: Manifest
    digest: str
    signed_by: str | None


def read_artifact(
    folder: Path,
    root: Path | None = None,
    verifier: Verifier | None = None,
    expected: str | None = None,
) -> Intact:
    """Check an artifact that must be a model's; see `read_any_artifact`.

    Raises:
        NotAModel: if it is a handler's.
        OtherDigest, IntegrityError: see `read_any_artifact`.
    """
    manifest, digest, signed_by = read_any_artifact(folder, root, verifier, expected)
    return Intact(_model(manifest), digest, signed_by)


def read_any_artifact(
    folder: Path,
    root: Path | None = None,
    verifier: Verifier | None = None,
    expected: str | None = None,
    *,
    whole: bool = True,
) -> IntactAny:
    """Check the signature and every digest; read all files, large ones in pieces.

    Until the signature is verified, only the manifest and its signature are opened, and the
    manifest is not parsed.

    Args:
        folder: the artifact.
        root: the repository that must contain it; None: anywhere.
        verifier: checks signatures; None: not checked.
        expected: the required digest; None: any.
        whole: whether to read the files; else only the manifest is checked.

    Raises:
        OtherDigest: if the artifact has another digest than the required one.
        IntegrityError: at the first file that is wrong.
    """
    text = _read(folder, MANIFEST_FILE, MAX_MANIFEST_BYTES, root)
    digest = hashlib.sha256(text).hexdigest()
    if expected is not None and digest != expected:
        raise OtherDigest(digest, expected)
    signed_by = None
    if verifier is not None:
        signed_by = verifier.verify(text, _read_if_there(folder, SIGNATURE_FILE, root))
    digest_line = _read(folder, DIGEST_FILE, MAX_SMALL_BYTES, root).decode("ascii", "replace")
    digest_line = digest_line.rstrip("\n")
    if digest_line != f"{digest}  {MANIFEST_FILE}":  # as sha256sum writes it
        raise IntegrityError(
            f"{MANIFEST_FILE} has SHA-256 {digest}, {DIGEST_FILE} says "
            f"{digest_line[:SHOWN_CHARACTERS]!r}; {ADVICE}"
        )
    manifest = _parse(text)
    for name, file in manifest.files.items() if whole else ():
        _check_file(folder, name, file, root)
    return IntactAny(manifest, digest, signed_by)


def read_manifest(folder: Path, root: Path | None = None) -> Manifest:
    """Read only the manifest of a model, without any check, for estimates.

    Raises:
        NotAModel: if it is a handler's.
        IntegrityError: if it cannot be read.
    """
    return _model(_parse(_read(folder, MANIFEST_FILE, MAX_MANIFEST_BYTES, root)))


def _model(manifest: Manifest | HandlerManifest) -> Manifest:
    if isinstance(manifest, HandlerManifest):
        raise NotAModel(manifest)
    return manifest


def read_verified(folder: Path, name: str, expected: FileDigest) -> bytes:
    """Return the bytes of an artifact's file, exactly those that were digested.

    Raises:
        IntegrityError: if they differ from the manifest.
    """
    data = io.BytesIO()
    copy_verified(folder, name, expected, data)
    return data.getvalue()


def copy_verified(folder: Path, name: str, expected: FileDigest, into: BinaryIO) -> None:
    """Copy an artifact's file in pieces, and digest what was copied.

    Raises:
        IntegrityError: if it differs from the manifest, or cannot be read.
        MemoryError: if the copy cannot be written.
    """
    _check_file(folder, name, expected, None, into)


def _check_file(
    folder: Path, name: str, expected: FileDigest, root: Path | None, into: BinaryIO | None = None
) -> None:
    """Check a file in pieces, because weights may be larger than the free memory."""
    try:
        with open_inside(folder, name, root) as file:
            size = size_of(file)
            if size != expected.bytes:
                raise IntegrityError(
                    f"{name} has {size} bytes, the manifest says {expected.bytes}; {ADVICE}"
                )
            sha256 = _sha256(file, expected.bytes, into)
    except (OSError, FileRejected) as error:
        raise _unreadable(name, error) from error
    if sha256 != expected.sha256:
        raise IntegrityError(
            f"{name} has SHA-256 {sha256}, the manifest says {expected.sha256}; {ADVICE}"
        )


def _sha256(file: BinaryIO, size: int, into: BinaryIO | None) -> str:
    """Digest, and copy, a limited number of bytes, so that a growing file cannot prolong this."""
    digest, bytes_left = hashlib.sha256(), size
    while piece := file.read(min(PIECE, bytes_left)):
        digest.update(piece)
        if into is not None:
            _write(into, piece)
        bytes_left -= len(piece)
    return digest.hexdigest()


def _write(into: BinaryIO, piece: bytes) -> None:
    try:
        into.write(piece)
    except OSError as error:  # a file in memory, or in a temporary folder
        raise MemoryError(f"the copy of the file: {error.strerror}") from error


def _read(folder: Path, name: str, limit: int, root: Path | None) -> bytes:
    try:
        return read_inside(folder, name, limit, root)
    except (OSError, FileRejected) as error:
        raise _unreadable(name, error) from error


def _read_if_there(folder: Path, name: str, root: Path | None) -> bytes | None:
    try:
        return read_inside(folder, name, MAX_SMALL_BYTES, root)
    except FileNotFoundError:
        return None
    except (OSError, FileRejected) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError | FileRejected) -> IntegrityError:
    if isinstance(error, OSError):
        return IntegrityError(f"{name} cannot be read: {error.strerror}")
    return IntegrityError(str(error))


def _parse(text: bytes) -> Manifest | HandlerManifest:
    try:
        check_manifest_size(text)
    except ValueError as error:
        raise IntegrityError(f"{MANIFEST_FILE} {error}") from error
    kind = HandlerManifest if is_handler(text) else Manifest
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        if error.error_count() > MAX_MISTAKES:  # to list them would take long, and much memory
            raise IntegrityError(
                f"{MANIFEST_FILE} has {error.error_count():,} mistakes; {ADVICE}"
            ) from error
        first = error.errors(include_url=False, include_context=False)[0]
        if first["loc"] == ("schema_version",):
            version = "none" if first["type"] == "missing" else _shorten(repr(first["input"]))
            raise IntegrityError(
                f"{MANIFEST_FILE} has schema_version {version}, this release reads "
                f"{SCHEMA_VERSION}; export the model with the matching release"
            ) from error
        where = _shorten(".".join(str(part) for part in first["loc"]))  # none: the whole
        place = ", ".join(filter(None, (MANIFEST_FILE, where)))
        raise IntegrityError(f"{place}: {_shorten(first['msg'])}") from error


def _shorten(text: str) -> str:
    """Return text from a manifest, printable and shortened for a sentence."""
    clean = printable(text)
    return clean if len(clean) <= 3 * SHOWN_CHARACTERS else f"{clean[: 3 * SHOWN_CHARACTERS]} ..."
