"""The repository: which versions it finds, and that it rejects every altered byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from app.errors import ArtifactInvalid
from app.registry.repository import Repository
from app.types import ModelId
from export.artifact import digest_of
from tests.artifacts import write_artifact
from tests.texts import tiny_tokenizer, write_text

PAIRWISE = ModelId("pairwise", 1)


@pytest.fixture
def root(repository: Path, tmp_path: Path) -> Path:
    """A copy of pairwise/1 that a test may damage."""
    shutil.copytree(repository / "pairwise/1", tmp_path / "pairwise/1")
    return tmp_path


def rejection(root: Path, model: ModelId = PAIRWISE) -> str:
    with pytest.raises(ArtifactInvalid) as caught:
        Repository(root).open(model)
    return str(caught.value)


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

    def test_files_are_ignored(self, tmp_path: Path) -> None:
        (tmp_path / "good/1").mkdir(parents=True)
        (tmp_path / "good/2").touch()
        (tmp_path / "README").touch()
        assert Repository(tmp_path).versions() == {"good": [1]}

    def test_a_missing_root_is_empty(self, tmp_path: Path) -> None:
        assert Repository(tmp_path / "nowhere").versions() == {}


class TestOpen:
    @pytest.mark.parametrize("name", ["digits", "pairwise"])
    def test_an_intact_artifact(self, repository: Path, name: str) -> None:
        artifact = Repository(repository).open(ModelId(name, 1))
        assert artifact.folder == repository / name / "1"
        assert (artifact.manifest.model, artifact.manifest.version) == (name, 1)
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
        ("none", "none does not exist; `python -m export` creates it"),
        ("file", "file is not a folder; choose the one that contains MODEL/VERSION"),
        ("empty", "empty contains no MODEL/VERSION; `python -m export` writes one with --out /"),
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
