"""Signatures: a manifest without a trusted signature is not even parsed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from models.integrity import IntegrityError, Untrusted, read_artifact
from models.signatures import (
    KeyFileError,
    TrustedKeys,
    claimed_key,
    signature_file,
)
from tests.artifacts import write_artifact, write_manifest
from tests.keys import Pair, make_pair

MANIFEST = b'{"model": "double"}'


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("keys"), "other")


@pytest.fixture(scope="module")
def trusted(pair: Pair) -> TrustedKeys:
    return TrustedKeys.read(pair.public)


def rejection(trusted: TrustedKeys, manifest: bytes, signature: bytes | None) -> str:
    with pytest.raises(Untrusted) as caught:
        trusted.verify(manifest, signature)
    return str(caught.value)


class TestVerify:
    def test_by_a_trusted_key(self, pair: Pair, trusted: TrustedKeys) -> None:
        assert trusted.verify(MANIFEST, pair.signer.sign(MANIFEST)) == pair.fingerprint

    def test_unsigned_artifact_is_refused(self, trusted: TrustedKeys) -> None:
        assert rejection(trusted, MANIFEST, None) == (
            "it is not signed: there is no manifest.sig, and only artifacts signed by a trusted "
            "key are accepted; sign it with `torchlane sign`"
        )

    def test_signed_by_an_unknown_key(self, other: Pair, trusted: TrustedKeys) -> None:
        message = rejection(trusted, MANIFEST, other.signer.sign(MANIFEST))
        assert message.startswith(
            f"manifest.sig is by the key {other.fingerprint}, which is not among the 1 that are "
        )

    def test_unknown_key_with_a_trusted_fingerprint_is_refused(
        self, pair: Pair, other: Pair, trusted: TrustedKeys
    ) -> None:
        raw = bytes.fromhex(other.signer.sign(MANIFEST).split()[2].decode())
        message = rejection(trusted, MANIFEST, signature_file(pair.fingerprint, raw))
        assert message.startswith(
            "manifest.sig is not a signature of this manifest.json by the key "
        )

    def test_signature_of_another_manifest(self, pair: Pair, trusted: TrustedKeys) -> None:
        message = rejection(trusted, MANIFEST, pair.signer.sign(MANIFEST + b" "))
        assert f"not a signature of this manifest.json by the key {pair.fingerprint}" in message

    def test_signature_for_another_purpose_is_refused(
        self, pair: Pair, trusted: TrustedKeys
    ) -> None:
        key = load_pem_private_key(pair.private.read_bytes(), password=None)
        assert isinstance(key, ed25519.Ed25519PrivateKey)
        signature = signature_file(pair.fingerprint, key.sign(MANIFEST))
        assert "not a signature of this manifest.json" in rejection(trusted, MANIFEST, signature)

    @pytest.mark.parametrize("length", [0, 1, 72, 73, 137, 200, 201])
    def test_truncated_signature(self, pair: Pair, trusted: TrustedKeys, length: int) -> None:
        message = rejection(trusted, MANIFEST, pair.signer.sign(MANIFEST)[:length])
        assert message.startswith("manifest.sig is malformed: it was cut off, altered, or ")

    @pytest.mark.parametrize("garbage", [b"\n", b" ", b"x", b"\0", b"ed25519 "])
    def test_garbage_around_the_signature_is_refused(
        self, pair: Pair, trusted: TrustedKeys, garbage: bytes
    ) -> None:
        signature = pair.signer.sign(MANIFEST)
        assert "is malformed" in rejection(trusted, MANIFEST, signature + garbage)
        assert "is malformed" in rejection(trusted, MANIFEST, garbage + signature)

    def test_uppercase_hex_is_refused(self, pair: Pair, trusted: TrustedKeys) -> None:
        assert "is malformed" in rejection(trusted, MANIFEST, pair.signer.sign(MANIFEST).upper())

    @given(data=st.data())
    def test_flipped_bit_in_manifest_or_signature_is_refused(
        self, pair: Pair, trusted: TrustedKeys, data: st.DataObject
    ) -> None:
        manifest = data.draw(st.binary(min_size=1, max_size=200))
        signature = pair.signer.sign(manifest)
        both = bytearray(manifest + signature)
        bit = data.draw(st.integers(0, len(both) * 8 - 1))
        both[bit // 8] ^= 1 << bit % 8
        size = len(manifest)
        assert rejection(trusted, bytes(both[:size]), bytes(both[size:]))

    @given(manifest=st.binary(max_size=50), signature=st.none() | st.binary(max_size=300))
    def test_arbitrary_signatures_are_refused(
        self, trusted: TrustedKeys, manifest: bytes, signature: bytes | None
    ) -> None:
        assert rejection(trusted, manifest, signature)

    def test_claimed_key_is_read_from_the_signature(self, pair: Pair) -> None:
        assert claimed_key(pair.signer.sign(MANIFEST)) == pair.fingerprint
        with pytest.raises(Untrusted, match="is malformed"):
            claimed_key(b"")


class TestRotation:
    def test_old_and_new_keys_are_trusted_together(
        self, tmp_path: Path, pair: Pair, other: Pair
    ) -> None:
        for each in (pair, other):
            shutil.copy(each.public, tmp_path)
        both = TrustedKeys.read(tmp_path)
        for each in (pair, other):
            assert both.verify(MANIFEST, each.signer.sign(MANIFEST)) == each.fingerprint
        assert both.origins == {
            pair.fingerprint: "signing.pub.pem",
            other.fingerprint: "other.pub.pem",
        }
        (tmp_path / pair.public.name).unlink()
        assert rejection(TrustedKeys.read(tmp_path), MANIFEST, pair.signer.sign(MANIFEST))

    def test_one_file_may_hold_several_keys(self, tmp_path: Path, pair: Pair, other: Pair) -> None:
        text = f"# of 2026\n{pair.public.read_text()}\n# of 2027\n{other.public.read_text()}"
        (tmp_path / "keys.pem").write_text(text)
        keys = TrustedKeys.read(tmp_path / "keys.pem")
        assert set(keys.origins) == {pair.fingerprint, other.fingerprint}

    def test_kubernetes_mounts_are_read(self, tmp_path: Path, pair: Pair) -> None:
        (tmp_path / "keys/..2026_01").mkdir(parents=True)
        shutil.copy(pair.public, tmp_path / "keys/..2026_01/a.pem")
        (tmp_path / "keys/..data").symlink_to("..2026_01")
        (tmp_path / "keys/a.pem").symlink_to("..data/a.pem")
        assert TrustedKeys.read(tmp_path / "keys").origins == {pair.fingerprint: "a.pem"}


def pem(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed448.Ed448PublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class TestKeyFiles:
    def rejected(self, path: Path) -> str:
        with pytest.raises(KeyFileError) as caught:
            TrustedKeys.read(path)
        return str(caught.value)

    def test_a_missing_or_empty_path(self, tmp_path: Path) -> None:
        assert self.rejected(tmp_path / "none").startswith("none cannot be read: No such file")
        assert self.rejected(tmp_path).startswith("contains no public key; ")

    def test_anything_else_next_to_a_key(self, tmp_path: Path, pair: Pair) -> None:
        shutil.copy(pair.public, tmp_path)
        (tmp_path / "README.txt").write_text("keys")
        assert self.rejected(tmp_path) == "README.txt is not a file of public keys in PEM"
        (tmp_path / "README.txt").unlink()
        (tmp_path / "old").mkdir()
        assert self.rejected(tmp_path) == "old cannot be read: Is a directory"

    def test_text_that_is_not_whole_keys(self, tmp_path: Path, pair: Pair) -> None:
        key = pair.public.read_text()
        for text in ("", "#", "-----BEGIN PUBLIC KEY-----", "ssh-ed25519 AAAA me", key + key[:60]):
            (tmp_path / "key.pem").write_text(text)
            assert self.rejected(tmp_path) == "key.pem is not a file of public keys in PEM"

    def test_a_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "key.pem")
        assert "key.pem is not a regular file" in self.rejected(tmp_path)

    def test_a_large_file(self, tmp_path: Path) -> None:
        (tmp_path / "key.pem").write_bytes(b"#" * 65_537)
        assert self.rejected(tmp_path).startswith("key.pem has 65,537 bytes; at most 65,536 are")

    def test_private_key_is_refused_and_not_shown(self, pair: Pair) -> None:
        message = self.rejected(pair.private)
        assert message.startswith("signing.pem contains a private key, which no server needs")
        assert not any(line in message for line in pair.private.read_text().splitlines())

    def test_keys_of_other_kinds(self, tmp_path: Path) -> None:
        for key in (
            rsa.generate_private_key(65537, 2048).public_key(),
            ec.generate_private_key(ec.SECP256R1()).public_key(),
            ed448.Ed448PrivateKey.generate().public_key(),
        ):
            (tmp_path / "key.pem").write_bytes(pem(key))
            assert self.rejected(tmp_path) == "key.pem contains a key that is not Ed25519"

    @settings(max_examples=200)
    @given(data=st.data())
    def test_damaged_key_file_never_crashes(
        self, tmp_path_factory: pytest.TempPathFactory, pair: Pair, data: st.DataObject
    ) -> None:
        text = bytearray(pair.public.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
        path = tmp_path_factory.getbasetemp() / "fuzzed.pem"
        path.write_bytes(text)
        try:
            keys = TrustedKeys.read(path)
        except KeyFileError:
            return
        assert len(keys.origins) == 1  # another key: one cannot tell


class TestArtifact:
    @pytest.fixture
    def folder(self, tmp_path: Path, pair: Pair) -> Path:
        folder = write_artifact(tmp_path, "double")
        pair.sign(folder)
        return folder

    def rejected(self, folder: Path, trusted: TrustedKeys) -> str:
        with pytest.raises(IntegrityError) as caught:
            read_artifact(folder, verifier=trusted)
        return str(caught.value)

    def test_the_signer_is_reported(self, folder: Path, pair: Pair, trusted: TrustedKeys) -> None:
        assert read_artifact(folder, verifier=trusted).signed_by == pair.fingerprint

    def test_signatures_are_not_checked_without_keys(self, folder: Path) -> None:
        (folder / "manifest.sig").unlink()
        os.mkfifo(folder / "manifest.sig")
        assert read_artifact(folder).signed_by is None

    def test_signature_is_verified_before_any_parsing(
        self, folder: Path, trusted: TrustedKeys
    ) -> None:
        (folder / "manifest.json").write_text("{")
        for name in ("manifest.sha256", "script.pt"):
            (folder / name).unlink()  # opening them would be told
        assert "not a signature of this manifest.json" in self.rejected(folder, trusted)
        (folder / "manifest.sig").unlink()
        assert self.rejected(folder, trusted).startswith("it is not signed")

    def test_altered_manifest_with_matching_digest_is_refused(
        self, folder: Path, trusted: TrustedKeys
    ) -> None:
        found = read_artifact(folder).manifest
        altered = found.model_copy(update={"description": "another one"})
        write_manifest(folder, altered)
        assert read_artifact(folder).manifest == altered  # its digest is right, that is
        assert "not a signature of this manifest.json" in self.rejected(folder, trusted)

    def test_a_file_altered_after_signing(self, folder: Path, trusted: TrustedKeys) -> None:
        data = (folder / "script.pt").read_bytes()
        (folder / "script.pt").write_bytes(data[:-1] + b"~")
        assert self.rejected(folder, trusted).startswith("script.pt has SHA-256 ")

    @pytest.mark.parametrize("kind", ["link", "pipe", "folder", "large"])
    def test_signature_must_be_a_regular_file(
        self, folder: Path, trusted: TrustedKeys, kind: str
    ) -> None:
        path = folder / "manifest.sig"
        elsewhere = path.rename(folder.parent / "elsewhere")
        if kind == "link":
            path.symlink_to(elsewhere)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.write_bytes(b" " * 5000)
        says = {
            "link": "is a link that leads out",
            "pipe": "is not a regular file",
            "folder": "cannot be read: Is a directory",
            "large": "has 5,000 bytes; at most 4,096 are read",
        }
        assert self.rejected(folder, trusted).startswith(f"manifest.sig {says[kind]}")


def test_fingerprint_matches_openssl_and_sha256sum(tmp_path: Path) -> None:
    text = (
        "-----BEGIN PUBLIC KEY-----\n"
        "MCowBQYDK2VwAyEAxhPF02kXj0hpPq5uojCJS/DcfjSiHOk5qwBnVXMwdo4=\n"
        "-----END PUBLIC KEY-----\n"
    )
    (tmp_path / "key.pem").write_text(text)
    wanted = "adaa4272a498872648e32aa237707bee3a65f285578e8ae6e64b073e3437dcc2"
    assert list(TrustedKeys.read(tmp_path / "key.pem").origins) == [wanted]
