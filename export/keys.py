"""Creates and reads Ed25519 key pairs in PEM files, and signs manifests with them.

Messages never contain private keys or passphrases: they name the file that cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from export.errors import NO_SPACE, ExportError, UsageError
from models.signatures import DOMAIN, MAX_KEY_BYTES, TrustedKeys, fingerprint_of, signature_file
from models.system.contained import FileRejected, read_named

PRIVATE_MODE, PUBLIC_MODE = 0o600, 0o644
READ_BY_OTHERS = 0o077

Ask = Callable[[], bytes]  # prompts for the passphrase of a key


class Signer:
    """Signs manifests with a private key.

    Attributes:
        fingerprint: of the public key.
        own: the public key, to verify with.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.fingerprint = fingerprint_of(key.public_key())
        self.own = TrustedKeys({self.fingerprint: key.public_key()}, {self.fingerprint: "--key"})

    def sign(self, manifest: bytes) -> bytes:
        """Return the content of `manifest.sig` for the bytes of a manifest."""
        return signature_file(self.fingerprint, self._key.sign(DOMAIN + manifest))


def make_keys(private: Path, passphrase: bytes | None) -> tuple[Path, str]:
    """Write a new key pair; existing files are never overwritten.

    Args:
        private: the file for the private key; the public key's file has `.pub.pem` appended.
        passphrase: encrypts the private key; None: not encrypted.

    Returns:
        the file of the public key, and its fingerprint.

    Raises:
        UsageError: if one of the files exists, or cannot be written.
    """
    public = private.with_name(f"{private.name.removesuffix('.pem')}.pub.pem")
    for path in (private, public):
        if os.path.lexists(path):
            raise UsageError(f"{path} exists; keys are never overwritten, choose another name")
    key = Ed25519PrivateKey.generate()
    encryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    _write(private, pem, PRIVATE_MODE)
    public_pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    _write(public, public_pem, PUBLIC_MODE)
    return public, fingerprint_of(key.public_key())


def read_signer(private: Path, ask: Ask) -> Signer:
    """Read a private key in PEM (PKCS8).

    Raises:
        UsageError: if there is no such key, or the passphrase is wrong.
    """
    try:
        data = read_named(private, MAX_KEY_BYTES)
    except OSError as error:
        raise UsageError(f"--key {private}: {error.strerror}") from error
    except FileRejected as error:
        raise UsageError(f"--key {private}: {error}") from error
    key = _load_key(private, data, ask)
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"--key {private}: not an Ed25519 key")
    return Signer(key)


def is_read_by_others(private: Path) -> bool:
    """Whether its mode lets users other than its owner read it."""
    return bool(private.stat().st_mode & READ_BY_OTHERS)


def _load_key(private: Path, data: bytes, ask: Ask) -> object:
    try:
        return load_pem_private_key(data, password=None)
    except TypeError:
        pass  # the key has a passphrase
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"--key {private}: no private key in PEM (PKCS8); `torchlane keygen` creates one"
        ) from error
    try:
        return load_pem_private_key(data, password=ask())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"--key {private}: wrong passphrase") from error


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        # Create with this mode, and never write into a file that has appeared meanwhile.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        kind = ExportError if error.errno in NO_SPACE else UsageError
        raise kind(f"cannot write {path}: {error.strerror}") from error
