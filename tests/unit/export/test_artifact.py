"""Artifact folders: numbered, complete or absent, and checkable with sha256sum."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from export.artifact import (
    any_artifact,
    choose_version,
    digest_of,
    publish,
    staging_folder,
    versions,
    write_file,
)
from export.errors import ExportError, UsageError
from models.manifest import MANIFEST_FILE, Manifest
from models.versions import MAX_VERSION
from tests.unit.models.manifests import make_manifest

MANIFEST = make_manifest()  # tiny, version 3


class TestVersions:
    def test_versions_are_whole_numbers_in_order(self, tmp_path: Path) -> None:
        for name in ("10", "9", "1", "0", "07", "v2", ".export-x", "1.5"):
            (tmp_path / name).mkdir()
        for name in ("20261125120000", "\u0663"):
            (tmp_path / name).mkdir()
        (tmp_path / "11").touch()  # its number is taken too
        assert versions(tmp_path) == [1, 9, 10, 11]

    def test_no_number_is_left(self, tmp_path: Path) -> None:
        (tmp_path / str(MAX_VERSION)).mkdir()
        with pytest.raises(UsageError, match=f"highest version, {MAX_VERSION}"):
            choose_version(tmp_path, None)
        assert choose_version(tmp_path, 7) == 7

    def test_an_unreadable_folder_is_a_usage_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def denied(_: object) -> list[str]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr("os.listdir", denied)
        with pytest.raises(UsageError, match="Permission denied"):
            choose_version(tmp_path, None)

    def test_an_unreadable_model_affects_no_other(self, tmp_path: Path) -> None:
        (tmp_path / "m/1").mkdir(parents=True)
        (tmp_path / "m/1" / MANIFEST_FILE).touch()
        (tmp_path / "a").symlink_to("x" * 300)
        assert any_artifact(tmp_path) == tmp_path / "m/1"
        assert any_artifact(tmp_path / "nowhere") is None

    @pytest.mark.parametrize(
        ("there", "expected", "chosen"),
        [([], None, 1), ([1, 2], None, 3), ([7], None, 8), ([7], 3, 3), ([], MAX_VERSION, None)],
    )
    def test_next_or_requested_version_is_chosen(
        self, tmp_path: Path, there: list[int], expected: int | None, chosen: int | None
    ) -> None:
        for number in there:
            (tmp_path / str(number)).mkdir()
        assert choose_version(tmp_path, expected) == (chosen or expected)

    @pytest.mark.parametrize("expected", [0, -1, MAX_VERSION + 1])
    def test_out_of_range(self, tmp_path: Path, expected: int) -> None:
        with pytest.raises(UsageError, match=f"got {expected}"):
            choose_version(tmp_path, expected)

    def test_existing_version_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "4").mkdir()
        with pytest.raises(UsageError, match=r"version 4 exists .* to write version 5"):
            choose_version(tmp_path, 4)


class TestWriteFile:
    def test_disk_error_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(ExportError, match=r"^cannot write file: No such file or directory$"):
            write_file(tmp_path / "missing/file", b"content")


def test_digest_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    digest = digest_of(path)
    assert (digest.sha256, digest.bytes) == (hashlib.sha256(b"content").hexdigest(), 7)


class TestStaging:
    def test_staging_folder_is_next_to_versions_and_removed(self, tmp_path: Path) -> None:
        (tmp_path / "tiny/1").mkdir(parents=True)
        with staging_folder(tmp_path, "tiny") as staging:
            assert staging.parent == tmp_path / "tiny"
            assert versions(tmp_path / "tiny") == [1]
            (staging / "half.pt").touch()
        assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["1"]

    def test_a_failed_first_export_leaves_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError), staging_folder(tmp_path, "tiny"):
            raise RuntimeError
        assert list(tmp_path.iterdir()) == []

    def test_failed_export_removes_new_parent_folders(self, tmp_path: Path) -> None:
        (tmp_path / "old").mkdir()
        for out in ("old/new/newer", "another"):
            with pytest.raises(RuntimeError), staging_folder(tmp_path / out, "tiny"):
                raise RuntimeError
        assert list(tmp_path.rglob("*")) == [tmp_path / "old"]

    def test_leftovers_of_a_killed_export_are_removed(self, tmp_path: Path) -> None:
        (tmp_path / "tiny/.export-12345678").mkdir(parents=True)
        with staging_folder(tmp_path, "tiny") as staging:
            assert list((tmp_path / "tiny").iterdir()) == [staging]

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_is_not_a_usage_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        def full(**_: object) -> str:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("tempfile.mkdtemp", full)
        with pytest.raises(ExportError) as failed, staging_folder(tmp_path, "tiny"):
            pass
        assert not isinstance(failed.value, UsageError)
        assert str(failed.value) == f"cannot write to {tmp_path}/tiny: {os.strerror(number)}"
        assert list(tmp_path.iterdir()) == []

    def test_unwritable_folder_is_a_usage_error(self, tmp_path: Path) -> None:
        (tmp_path / "tiny").touch()
        with (
            pytest.raises(UsageError, match=f"cannot write to {tmp_path}/tiny: File exists"),
            staging_folder(tmp_path, "tiny"),
        ):
            pass


class TestPublish:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        with staging_folder(tmp_path, "tiny") as staging:
            (staging / "script.pt").write_bytes(b"model")
            return publish(staging, MANIFEST)

    def test_folder_is_named_by_version_and_complete(self, tmp_path: Path, folder: Path) -> None:
        assert folder == tmp_path / "tiny/3"
        assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["3"]
        names = sorted(path.name for path in folder.iterdir())
        assert names == ["manifest.json", "manifest.sha256", "script.pt"]
        text = (folder / "manifest.json").read_bytes()
        assert Manifest.model_validate_json(text) == MANIFEST

    @pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
    def test_sha256sum_can_check_the_digest(self, folder: Path) -> None:
        command = ["sha256sum", "--check", "--strict", "manifest.sha256"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "manifest.json: OK\n")

    def test_artifact_is_readable_by_others(self, folder: Path) -> None:
        assert folder.stat().st_mode & 0o777 == 0o755

    def test_second_of_two_concurrent_exports_fails(self, tmp_path: Path, folder: Path) -> None:
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with staging_folder(tmp_path, "tiny") as staging:
            (staging / "script.pt").write_bytes(b"another")
            with pytest.raises(ExportError, match="another export has written"):
                publish(staging, MANIFEST)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["3"]
