"""Signing again: an altered artifact does not become trusted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from export.pipeline import finish, with_changes
from export.renewal import sign_anew
from models.integrity import IntegrityError, read_artifact
from tests.artifacts import write_manifest
from tests.keys import Pair, make_pair
from tests.unit.export.command_line import manifest_of, run


@pytest.fixture
def signed(old: Path, pair: Pair) -> Path:
    return sign_anew(old, pair.signer)


@pytest.fixture
def other(tmp_path: Path) -> Pair:
    return make_pair(tmp_path, "other")


def rejected(capsys: pytest.CaptureFixture[str], folder: Path, *options: object) -> str:
    before = sorted(folder.parent.iterdir())
    assert run("sign", folder, *options)[0] == 2
    assert sorted(folder.parent.iterdir()) == before
    return capsys.readouterr().err


def test_altered_artifact_with_new_digests_is_refused(
    signed: Path, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = manifest_of(signed).model_copy(update={"description": "another one"})
    write_manifest(signed, forged)
    assert read_artifact(signed).manifest == forged
    message = rejected(capsys, signed, "--key", pair.private)
    assert f"{signed}: manifest.sig is not a signature of this manifest.json" in message
    assert "export sign" not in message


def test_artifact_signed_by_an_untrusted_key_is_refused(
    signed: Path, pair: Pair, other: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    message = rejected(capsys, signed, "--key", other.private)
    assert f"manifest.sig is by the key {pair.fingerprint}, which is not among the 1" in message
    assert "--trusted-keys" in message


def test_lost_signature_is_refused(
    signed: Path, pair: Pair, other: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    (signed / "manifest.sig").unlink()
    options = ("--key", other.private, "--trusted-keys", pair.public)
    assert "not signed" in rejected(capsys, signed, *options)


def test_dangling_signature_link_is_refused(
    signed: Path, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    (signed / "manifest.sig").unlink()
    (signed / "manifest.sig").symlink_to("nothing")
    assert "not signed" in rejected(capsys, signed, "--key", pair.private)


def test_a_replaced_staged_file_keeps_its_verified_digest(old: Path, pair: Pair) -> None:
    staging = shutil.copytree(old, old.with_name(".export-test"))
    for name in ("manifest.json", "manifest.sha256"):
        (staging / name).unlink()
    (staging / "script.pt").write_bytes(b"another program")
    artifact = finish(staging, with_changes(manifest_of(old), version=2), pair.signer.sign)
    with pytest.raises(IntegrityError, match=r"^script\.pt has "):
        read_artifact(artifact.folder)
