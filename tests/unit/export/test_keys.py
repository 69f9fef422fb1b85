"""Keys: readable only for their owner, with or without a passphrase, never in messages."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from export.errors import UsageError
from export.keys import is_read_by_others, make_keys, read_signer
from models.signatures import TrustedKeys
from tests.keys import make_pair

PASSPHRASE = b"correct horse battery staple"
MANIFEST = b"a manifest"


def prompt_for(passphrase: bytes = PASSPHRASE) -> Callable[[], bytes]:
    return lambda: passphrase


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_owner_can_read_a_private_key(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        public, _ = make_keys(tmp_path / "signing.pem", None)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "signing.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644 & ~umask
    assert public == tmp_path / "signing.pub.pem"
    assert not is_read_by_others(tmp_path / "signing.pem")
    assert is_read_by_others(public) == (umask != 0o077)


def test_public_key_verifies_the_signature(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    signature = pair.signer.sign(MANIFEST)
    assert TrustedKeys.read(pair.public).verify(MANIFEST, signature) == pair.fingerprint
    assert pair.signer.sign(MANIFEST) == signature  # no chance is in it


class TestPassphrase:
    def test_an_encrypted_key_signs_with_it(self, tmp_path: Path) -> None:
        _, fingerprint = make_keys(tmp_path / "signing.pem", PASSPHRASE)
        assert b"ENCRYPTED" in (tmp_path / "signing.pem").read_bytes()
        assert read_signer(tmp_path / "signing.pem", prompt_for()).fingerprint == fingerprint

    def test_wrong_passphrase_is_refused_and_not_shown(self, tmp_path: Path) -> None:
        make_keys(tmp_path / "signing.pem", PASSPHRASE)
        with pytest.raises(UsageError) as excinfo:
            read_signer(tmp_path / "signing.pem", prompt_for(b"not this one"))
        assert str(excinfo.value).endswith("signing.pem: wrong passphrase")


class TestRejected:
    @pytest.mark.parametrize("there", ["signing.pem", "signing.pub.pem"])
    @pytest.mark.parametrize("dangling", [False, True])
    def test_existing_files_are_never_overwritten(
        self, tmp_path: Path, there: str, dangling: bool
    ) -> None:
        if dangling:
            (tmp_path / there).symlink_to("nowhere")
        else:
            (tmp_path / there).write_text("precious")
        with pytest.raises(UsageError, match=f"{there} exists; keys are never overwritten"):
            make_keys(tmp_path / "signing.pem", None)
        assert [path.name for path in tmp_path.iterdir()] == [there]

    def rejected(self, path: Path) -> str:
        with pytest.raises(UsageError) as excinfo:
            read_signer(path, prompt_for())
        return str(excinfo.value).removeprefix(f"--key {path}: ")

    def test_public_key_cannot_sign(self, tmp_path: Path) -> None:
        message = self.rejected(make_pair(tmp_path).public)
        assert message.startswith("no private key in PEM (PKCS8); ")

    def test_damaged_key_is_not_shown(self, tmp_path: Path) -> None:
        private = make_pair(tmp_path).private
        lines = private.read_text().splitlines()
        private.write_text("\n".join([lines[0], lines[1][:-3], lines[2]]))
        message = self.rejected(private)
        assert message.startswith("no private key in PEM (PKCS8); ")
        assert lines[1][:10] not in message

    def test_a_key_of_another_kind(self, tmp_path: Path) -> None:
        key = rsa.generate_private_key(65537, 2048)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (tmp_path / "rsa.pem").write_bytes(pem)
        assert self.rejected(tmp_path / "rsa.pem") == "not an Ed25519 key"

    def test_a_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        assert "pipe is not a regular file" in self.rejected(tmp_path / "pipe")

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"cannot write .*: No such file or directory"):
            make_keys(tmp_path / "none/signing.pem", None)

    def test_no_such_key(self, tmp_path: Path) -> None:
        assert self.rejected(tmp_path / "none") == "No such file or directory"
