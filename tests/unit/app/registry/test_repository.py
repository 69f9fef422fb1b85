"""The repository: which versions it finds, and that it rejects every altered byte."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.errors import ArtifactInvalid
from app.registry.repository import Contents, Repository
from app.types import ModelId
from export.artifact import digest_of
from tests.artifacts import write_artifact
from tests.texts import tiny_tokenizer, write_text

PAIRWISE = ModelId("pairwise", 1)
LINKS = {"missing": "nowhere", "loop": "m", "too long": "x" * 300, "loop of two": "2"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With a model `pairwise` that a test may damage."""
    write_artifact(tmp_path, "pairwise")
    return tmp_path


def rejection(root: Path, model: ModelId = PAIRWISE) -> str:
    with pytest.raises(ArtifactInvalid) as caught:
        Repository(root).open(model)
    return str(caught.value)


def deny(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int) -> None:
    """Let one folder be unreadable, also for a user who may read everything."""
    scandir = os.scandir

    def denied(path: Any) -> Any:
        if os.fspath(path) == str(folder):
            raise OSError(number, os.strerror(number))
        return scandir(path)

    monkeypatch.setattr("os.scandir", denied)


def test_file_altered_after_opening_is_not_read(tmp_path: Path) -> None:
    folder = write_text(tmp_path)
    artifact = Repository(tmp_path).open(ModelId("text", 1))
    assert artifact.read("tokenizer.json") == tiny_tokenizer()
    (folder / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(ArtifactInvalid, match=r"tokenizer\.json"):
        artifact.read("tokenizer.json")


class TestVersions:
    def test_newest_first_and_by_number(self, tmp_path: Path) -> None:
        for name in ("b/1", "b/10", "b/9", "a/2"):
            (tmp_path / name).mkdir(parents=True)
        assert Repository(tmp_path).versions() == {"a": [2], "b": [10, 9, 1]}

    @pytest.mark.parametrize(
        "name",
        [
            *("m/0", "m/01", "m/-1", "m/1.0", "m/v1", "m/.export-abc", "m/1234567890", "m/\u0661"),
            *(".hidden/1", "_m/1", "a.b/1", "a b/1", "empty", f"{'x' * 65}/1"),
        ],
    )
    def test_other_folders_are_ignored(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / "good/1").mkdir(parents=True)
        assert Repository(tmp_path).versions() == {"good": [1]}

    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            *((f"m/{name}", f"m/{name}") for name in ("01", "v2", "1.0", "20261125120000", "x")),
            ("my model/1", "my model"),
            ("m/a\nb", "m/a?b"),
            (os.fsdecode(b"m/\xff"), "m/?"),
            (os.fsdecode(b"\xfe/1"), "?"),
        ],
    )
    def test_folders_with_other_names_are_named(
        self, tmp_path: Path, name: str, shown: str
    ) -> None:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / "good/1").mkdir(parents=True)
        found = Repository(tmp_path).scan()
        assert (found.versions, found.ignored) == ({"good": [1]}, {shown})
        assert found.unreadable == {}

    def test_common_other_entries_are_not_named(self, tmp_path: Path) -> None:
        for name in ("good/1", "good/.export-x", ".git/1", "lost+found"):
            (tmp_path / name).mkdir(parents=True)
        for name in ("README", "good/report.txt"):
            (tmp_path / name).touch()
        assert Repository(tmp_path).scan() == Contents({"good": [1]})

    @pytest.mark.parametrize("make", [Path.touch, os.mkfifo], ids=["file", "pipe"])
    def test_a_file_named_like_a_version_is_named(
        self, tmp_path: Path, make: Callable[[Path], None]
    ) -> None:
        (tmp_path / "m/1").mkdir(parents=True)
        make(tmp_path / "m/2")
        assert Repository(tmp_path).scan() == Contents({"m": [1]}, {}, {"m/2"})

    @pytest.mark.parametrize("target", LINKS.values(), ids=LINKS)
    def test_a_link_that_leads_nowhere_is_a_bad_version(self, tmp_path: Path, target: str) -> None:
        write_artifact(tmp_path, "m", 1)
        (tmp_path / "m/2").symlink_to(target)
        assert Repository(tmp_path).scan() == Contents({"m": [2, 1]})
        assert rejection(tmp_path, ModelId("m", 2)).startswith("m/2: manifest.json cannot be read")


class TestUnreadableFolders:
    """One of them affects no other."""

    @pytest.mark.parametrize("target", LINKS.values(), ids=LINKS)
    def test_a_link_that_leads_nowhere(self, tmp_path: Path, target: str) -> None:
        for name in ("a/1", "z/1"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "m").symlink_to(target)
        found = Repository(tmp_path).scan()
        assert found.versions == {"a": [1], "z": [1]}
        assert found.unreadable.keys() == {"m"}

    @pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
    def test_the_folder_cannot_be_listed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        for name in ("a/1", "m/1", "z/1"):
            (tmp_path / name).mkdir(parents=True)
        deny(monkeypatch, tmp_path / "m", number)
        found = Repository(tmp_path).scan()
        assert found.versions == {"a": [1], "z": [1]}
        assert found.unreadable == {"m": f"it cannot be read: {os.strerror(number)}"}

    def test_the_repository_itself_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deny(monkeypatch, tmp_path, errno.EACCES)
        with pytest.raises(PermissionError):
            Repository(tmp_path).scan()


def test_a_stamp_changes_with_the_state_of_a_file(tmp_path: Path) -> None:
    """A copy that keeps the size and the time of the last write still changes it."""
    folder, repository = write_artifact(tmp_path, "m", 1), Repository(tmp_path)
    before, file = repository.stamp(ModelId("m", 1)), folder / "script.pt"
    times = file.stat()
    file.write_bytes(bytes(times.st_size))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert repository.stamp(ModelId("m", 1)) != before


class TestOpen:
    def test_an_intact_artifact(self, root: Path) -> None:
        artifact = Repository(root).open(PAIRWISE)
        assert artifact.folder == root / "pairwise/1"
        assert (artifact.manifest.model, artifact.manifest.version) == PAIRWISE[:2]
        assert artifact.digest == digest_of(artifact.folder / "manifest.json").sha256

    @pytest.mark.parametrize("model", [ModelId("pairwise", 2), ModelId("nothing", 1)])
    def test_no_such_artifact(self, root: Path, model: ModelId) -> None:
        assert rejection(root, model).startswith(f"{model}: manifest.json cannot be read")

    @pytest.mark.parametrize("to", [ModelId("pairwise", 2), ModelId("other", 1)])
    def test_a_moved_folder(self, root: Path, to: ModelId) -> None:
        (root / to.name).mkdir(exist_ok=True)
        (root / "pairwise/1").rename(root / to.name / str(to.version))
        message = rejection(root, to)
        assert message.startswith(f"{to}: manifest.json belongs to pairwise/1")
        assert "moved or renamed" in message


@pytest.mark.parametrize(
    ("below", "told"),
    [
        ("none", "none does not exist; `torchlane export` creates it"),
        ("file", "file is not a folder; choose the one that contains MODEL/VERSION"),
        ("empty", "empty contains no MODEL/VERSION; `torchlane export` writes one with --out /"),
        ("models/double", "models/double is the folder of one model; did you mean {root}/models?"),
        (
            "models/double/1",
            "models/double/1 is one version of a model; did you mean {root}/models?",
        ),
    ],
)
def test_empty_repository_error_explains_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str, told: str
) -> None:
    write_artifact(tmp_path / "models", "double")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    repository = Repository(Path(below))  # as one would write it
    assert repository.versions() == {}
    assert repository.why_empty().startswith(f"{tmp_path}/" + told.format(root=tmp_path))
