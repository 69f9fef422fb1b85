"""Pairs of keys, and artifacts that are signed with them in place: tests need no new version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from export.errors import ExportError
from export.keys import Signer, make_keys, read_signer
from models.manifest import MANIFEST_FILE, SIGNATURE_FILE


@dataclass(frozen=True, slots=True)
class Pair:
    """A private key that signs, and the file of its public key."""

    signer: Signer
    private: Path
    public: Path

    @property
    def fingerprint(self) -> str:
        return self.signer.fingerprint

    def sign(self, folder: Path) -> None:
        """Sign an artifact where it lies."""
        manifest = (folder / MANIFEST_FILE).read_bytes()
        (folder / SIGNATURE_FILE).write_bytes(self.signer.sign(manifest))


def make_pair(folder: Path, name: str = "signing") -> Pair:
    """Of an open private key, NAME.pem, and NAME.pub.pem."""
    private = folder / f"{name}.pem"
    public, _ = make_keys(private, None)
    return Pair(read_signer(private, no_passphrase), private, public)


def no_passphrase() -> bytes:
    raise ExportError("the key has no passphrase, and yet it was asked for")
