"""Ed25519 signatures over manifests: their format, and their verification with trusted keys."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from models.integrity import Untrusted
from models.manifest import MANIFEST_FILE, SIGNATURE_FILE
from models.system.contained import FileRejected, read_named

# Prefix of the signed manifest, so that nothing else that a key signs can pass as a manifest.
DOMAIN = b"torchlane artifact manifest 1\0"
MAX_KEY_BYTES = 64 * 1024  # of a file of public keys; a key has 113
# One spelling per signature: base64 or capitals would allow several equivalent files.
SIGNATURE = re.compile(rb"ed25519 ([0-9a-f]{64}) ([0-9a-f]{128})\n")
PUBLIC_KEY = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", re.DOTALL)
COMMENT = re.compile(rb"^\s*#.*$", re.MULTILINE)
SIGN_IT = "sign it with `torchlane sign`"
GET_IT = "get the artifact again from where it was signed"  # signing would hide the change


class KeyFileError(ValueError):
    """A key file is invalid; the message names it."""


class TrustedKeys:
    """The trusted public keys; satisfies `models.integrity.Verifier`.

    Args:
        keys: fingerprint -> key; see `fingerprint_of`.
        origins: fingerprint -> the name of the key's file.
    """

    def __init__(self, keys: Mapping[str, Ed25519PublicKey], origins: Mapping[str, str]) -> None:
        self._keys = dict(keys)
        self.origins = dict(origins)

    @classmethod
    def read(cls, path: Path) -> TrustedKeys:
        """Read a file with one or more PEM public keys, or a folder of such files.

        Skips entries whose names begin with a dot, because Kubernetes mounts some.

        Raises:
            KeyFileError: if there is no key, or anything except keys.
        """
        try:
            folder = path.is_dir()
            names = sorted(each.name for each in path.iterdir()) if folder else [path.name]
        except OSError as error:
            raise KeyFileError(f"cannot be read: {error.strerror}") from error
        keys: dict[str, Ed25519PublicKey] = {}
        origins: dict[str, str] = {}
        for name in names:
            if folder and name.startswith("."):
                continue
            for key in _public_keys(path if folder else path.parent, name):
                fingerprint = fingerprint_of(key)
                keys[fingerprint] = key
                origins.setdefault(fingerprint, name)
        if not keys:
            raise KeyFileError("contains no public key; `torchlane keygen` creates one")
        return cls(keys, origins)

    def and_also(self, other: TrustedKeys) -> TrustedKeys:
        """Return these keys and another object's keys."""
        return TrustedKeys(self._keys | other._keys, self.origins | other.origins)

    def verify(self, manifest: bytes, signature: bytes | None) -> str:
        if signature is None:
            raise Untrusted(
                f"it is not signed: there is no {SIGNATURE_FILE}, and only artifacts signed by a "
                f"trusted key are accepted; {SIGN_IT}"
            )
        fingerprint, raw = _parse(signature)
        key = self._keys.get(fingerprint)
        if key is None:
            raise Untrusted(
                f"{SIGNATURE_FILE} is by the key {fingerprint}, which is not among the "
                f"{len(self._keys)} that are trusted; trust it too if you know whose it "
                "is (--trusted-keys for `torchlane sign`, which signs with another key)"
            )
        try:
            key.verify(raw, DOMAIN + manifest)
        except InvalidSignature as error:
            raise Untrusted(
                f"{SIGNATURE_FILE} is not a signature of this {MANIFEST_FILE} by the key "
                f"{fingerprint}: one of the two was altered, or is from another artifact; {GET_IT}"
            ) from error
        return fingerprint


def signature_file(fingerprint: str, raw: bytes) -> bytes:
    """Return the content of `manifest.sig`.

    Args:
        fingerprint: of the key.
        raw: the key's signature of `DOMAIN` and the manifest, 64 bytes.
    """
    return f"ed25519 {fingerprint} {raw.hex()}\n".encode("ascii")


def claimed_key(signature: bytes) -> str:
    """Return the fingerprint in a signature file, which only `verify` checks.

    Raises:
        Untrusted: if it is not a signature file.
    """
    return _parse(signature)[0]


def fingerprint_of(key: Ed25519PublicKey) -> str:
    """Return the key's SHA-256: `openssl pkey -pubin -in FILE -outform DER | sha256sum`, in hex."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def _parse(signature: bytes) -> tuple[str, bytes]:
    match = SIGNATURE.fullmatch(signature)
    if match is None:
        raise Untrusted(
            f"{SIGNATURE_FILE} is malformed: it was cut off, altered, or written by another "
            f"release; {GET_IT}"
        )
    return match[1].decode("ascii"), bytes.fromhex(match[2].decode("ascii"))


def _public_keys(folder: Path, name: str) -> list[Ed25519PublicKey]:
    try:
        data = read_named(folder / name, MAX_KEY_BYTES)
    except OSError as error:
        raise KeyFileError(f"{name} cannot be read: {error.strerror}") from error
    except FileRejected as error:
        raise KeyFileError(str(error)) from error
    if b"PRIVATE KEY-----" in data:
        raise KeyFileError(
            f"{name} contains a private key, which no server needs; use the public one"
        )
    blocks = PUBLIC_KEY.findall(data)
    if not blocks or COMMENT.sub(b"", PUBLIC_KEY.sub(b"", data)).strip():
        raise KeyFileError(f"{name} is not a file of public keys in PEM")
    return [_public_key(block, name) for block in blocks]


def _public_key(block: bytes, name: str) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(block)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{name} contains a public key that cannot be read") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{name} contains a key that is not Ed25519")
    return key
