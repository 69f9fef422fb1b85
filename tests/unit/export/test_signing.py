"""The commands `keygen` and `sign`, and what `show` says about signatures."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from export.options.signing import PASSPHRASE
from export.renewal import sign_anew
from models.integrity import read_artifact
from models.manifest import Manifest
from models.signatures import TrustedKeys
from tests.keys import Pair, make_pair
from tests.unit.export.command_line import manifest_of, run
from tests.unit.export.jobs import content

SECRET = "correct horse battery staple"


class TestSign:
    def test_a_signed_version_differs_in_number_time_and_report(
        self, old: Path, pair: Pair
    ) -> None:
        before = content(old)
        code, printed = run("sign", old, "--key", pair.private)
        new = old.with_name("2")
        assert code == 0
        assert printed == f"{new} is {old}, signed by the key {pair.fingerprint}\n"
        assert content(old) == before
        assert set(content(new)) == {*before, "manifest.sig"}
        result = read_artifact(new, verifier=TrustedKeys.read(pair.public))
        assert result.signed_by == pair.fingerprint
        unsigned, signed = manifest_of(old), manifest_of(new)
        for name in set(Manifest.model_fields) - {"version", "created_at", "files"}:
            assert getattr(signed, name) == getattr(unsigned, name)
        assert signed.version == 2
        digests = signed.files.items() ^ unsigned.files.items()
        assert {name for name, _ in digests} == {"report.html"}
        assert "tiny version 2" in (new / "report.html").read_text(encoding="utf-8")

    def test_another_key_makes_another_version(self, old: Path, pair: Pair, tmp_path: Path) -> None:
        other = make_pair(tmp_path, "other")
        assert run("sign", old, "--key", pair.private)[0] == 0
        rotation = ("--key", other.private, "--trusted-keys", pair.public)
        assert run("sign", old.with_name("2"), *rotation)[0] == 0
        trusted = TrustedKeys.read(other.public)
        assert read_artifact(old.with_name("3"), verifier=trusted).signed_by == other.fingerprint

    def test_tuned_version_is_not_signed(self, old: Path, pair: Pair) -> None:
        assert run("sign", old, "--key", pair.private)[0] == 0
        code, printed = run("tune", old.with_name("2"), "--max-batch-size", 1, "--threads", 1)
        assert code == 0
        assert "is signed, the new version is not; sign it" in printed
        assert "manifest.sig" not in content(old.with_name("3"))
        assert "signed" not in run("tune", old, "--max-batch-size", 1, "--threads", 1)[1]

    @pytest.mark.parametrize("name", ["script.pt", "manifest.json", "manifest.sha256"])
    def test_altered_artifact_is_not_signed(
        self, old: Path, pair: Pair, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        data = bytearray((old / name).read_bytes())
        data[len(data) // 3] ^= 1
        (old / name).write_bytes(data)
        assert run("sign", old, "--key", pair.private)[0] == 2
        assert "is not an intact artifact: " in capsys.readouterr().err
        assert [path.name for path in old.parent.iterdir()] == ["1"]

    def test_a_link_to_elsewhere_is_not_signed(
        self, old: Path, pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        elsewhere = (old / "script.pt").rename(tmp_path / "script.pt")
        (old / "script.pt").symlink_to(elsewhere)
        assert run("sign", old, "--key", pair.private)[0] == 2
        assert "script.pt is a link that leads out" in capsys.readouterr().err

    def test_key_readable_by_others_causes_a_warning(self, old: Path, pair: Pair) -> None:
        pair.private.chmod(0o640)
        code, printed = run("sign", old, "--key", pair.private)
        assert code == 0
        assert printed.startswith(f"warning: others can read {pair.private}; chmod 600 keeps them")


class TestKeygen:
    def test_new_key_pair_can_sign(self, old: Path, tmp_path: Path) -> None:
        code, printed = run("keygen", tmp_path / "release.pem")
        assert code == 0
        public = tmp_path / "release.pub.pem"
        (fingerprint,) = TrustedKeys.read(public).origins
        assert printed == (
            f"{tmp_path}/release.pem signs: keep it secret, and away from servers\n"
            f"{public} is for servers: set TORCHLANE_TRUSTED_KEYS to it, or to its folder\n"
            f"fingerprint {fingerprint}\n"
        )
        assert run("sign", old, "--key", tmp_path / "release.pem")[0] == 0

    def test_existing_key_is_not_overwritten(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("keygen", tmp_path / "a.pem")[0] == 0
        before = content(tmp_path)
        assert run("keygen", tmp_path / "a.pem")[0] == 2
        assert "a.pem exists" in capsys.readouterr().err
        assert content(tmp_path) == before


class TestPassphrase:
    @pytest.fixture
    def private(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A key whose passphrase is no longer in the environment."""
        monkeypatch.setenv(PASSPHRASE, SECRET)
        assert run("keygen", tmp_path / "locked.pem", "--passphrase")[0] == 0
        monkeypatch.delenv(PASSPHRASE)
        return tmp_path / "locked.pem"

    def typed(self, monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
        """A person at a terminal."""
        monkeypatch.setattr(sys, "stdin", Terminal())
        left = list(answers)
        monkeypatch.setattr("getpass.getpass", lambda question: left.pop(0))

    def test_of_the_environment_is_not_printed(
        self,
        private: Path,
        old: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert "ENCRYPTED" in private.read_text()
        monkeypatch.setenv(PASSPHRASE, SECRET)
        code, printed = run("sign", old, "--key", private)
        message = capsys.readouterr()
        assert code == 0
        assert SECRET not in printed + message.out + message.err
        assert private.read_text().splitlines()[1] not in printed + message.out + message.err

    def test_typed(self, private: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.typed(monkeypatch, SECRET)
        assert run("sign", old, "--key", private)[0] == 0

    def test_missing_terminal_fails_immediately(
        self,
        private: Path,
        old: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(SECRET))
        assert run("sign", old, "--key", private)[0] == 2
        assert f"a passphrase is required: set {PASSPHRASE}, or run" in capsys.readouterr().err

    @pytest.mark.parametrize("answer", ["hunter2hunter2", ""])
    def test_wrong_passphrase_is_not_shown(
        self,
        private: Path,
        old: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        answer: str,
    ) -> None:
        self.typed(monkeypatch, answer)
        code, printed = run("sign", old, "--key", private)
        message = capsys.readouterr()
        assert code == 2
        assert "passphrase" in message.err
        assert "hunter2" not in printed + message.out + message.err

    def test_new_passphrase_is_typed_twice(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.typed(monkeypatch, SECRET, SECRET)
        assert run("keygen", tmp_path / "a.pem", "--passphrase")[0] == 0
        self.typed(monkeypatch, SECRET, "another")
        assert run("keygen", tmp_path / "b.pem", "--passphrase")[0] == 2
        assert "the two passphrases differ; no key was created" in capsys.readouterr().err
        assert not (tmp_path / "b.pem").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestShow:
    @pytest.fixture
    def signed(self, old: Path, pair: Pair) -> Path:
        return sign_anew(old, pair.signer)

    def test_an_artifact_without_a_signature(self, old: Path) -> None:
        rows = [line.split() for line in run("show", old)[1].splitlines()]
        assert ["signature", "none"] in rows

    def test_an_unchecked_signature(self, signed: Path, pair: Pair) -> None:
        code, printed = run("show", signed)
        assert code == 0
        assert f"by {pair.fingerprint}, not checked (--trusted-keys)" in printed

    def test_a_signature_by_a_trusted_key(self, signed: Path, pair: Pair) -> None:
        code, printed = run("show", signed, "--trusted-keys", pair.public)
        assert code == 0
        assert f"by {pair.fingerprint}, a trusted key" in printed

    def test_unsigned_artifact_is_refused(
        self, old: Path, pair: Pair, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, printed = run("show", old, "--trusted-keys", pair.public)
        assert (code, printed) == (2, "")
        assert capsys.readouterr().err.startswith(
            f"torchlane: {old}: it is not signed: there is no"
        )

    def test_a_malformed_signature(self, signed: Path) -> None:
        (signed / "manifest.sig").write_text("by me")
        assert "manifest.sig is malformed" in run("show", signed)[1]

    def test_a_folder_without_trusted_keys(
        self, signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "keys").mkdir()
        assert run("show", signed, "--trusted-keys", tmp_path / "keys")[0] == 2
        assert "--trusted-keys" in capsys.readouterr().err
