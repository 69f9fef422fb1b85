"""Tuning an artifact again: a new version with another plan, otherwise unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from export.errors import ExportError, UsageError
from export.pipeline import ExportedArtifact, open_artifact
from export.renewal import tune_again
from export.timing.tune import TuneOptions
from models.choices import Precision
from models.manifest import Manifest
from tests.unit.export.definitions import CATALOG
from tests.unit.export.jobs import content, make, stage
from tests.unit.export.measured import on_cpu

TINY = CATALOG["tiny"]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> ExportedArtifact:
    return make(tmp_path_factory.mktemp("out"), TINY, "script", "bf16")


@pytest.fixture
def old(artifact: ExportedArtifact, tmp_path: Path) -> Path:
    folder = tmp_path / "tiny/1"
    shutil.copytree(artifact.folder, folder)
    return folder


def test_a_new_version_differs_only_in_its_plan(artifact: ExportedArtifact, old: Path) -> None:
    before = content(old)
    again = tune_again(old, TuneOptions(max_batch=2, threads=2), stage)
    assert again.folder == old.parent / "2"
    assert content(old) == before
    assert open_artifact(again.folder) == again.manifest
    fields = set(Manifest.model_fields) - {"version", "created_at", "plan", "files"}
    for name in fields:
        assert getattr(again.manifest, name) == getattr(artifact.manifest, name)
    assert (again.manifest.version, again.manifest.plan is None) == (2, False)
    for name, digest in artifact.manifest.files.items():
        if name != "report.html":
            assert again.manifest.files[name] == digest
    plan = again.manifest.plan
    device = on_cpu(plan)
    assert device.processor.threads == 2
    assert {times.batch_sizes for times in device.times} == {(1, 2)}
    assert "tiny version 2" in (again.folder / "report.html").read_text(encoding="utf-8")


def test_precision_is_kept_unless_another_is_requested(old: Path) -> None:
    turns: list[tuple[Precision | None, Precision]]
    turns = [("bf16", "bf16"), (None, "bf16"), ("float32", "float32")]
    for precision, kept in turns:
        again = tune_again(old, TuneOptions(max_batch=1, precision=precision), stage)
        assert again.manifest.plan is not None
        assert again.manifest.plan.precision == kept
        old = again.folder


def test_file_damaged_during_the_copy_is_reported(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaging(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes() + b" ")

    monkeypatch.setattr("shutil.copyfile", damaging)
    with pytest.raises(ExportError, match=r"bf16\.pt changed while it was copied; run this again"):
        tune_again(old, TuneOptions(), stage)
    assert [path.name for path in old.parent.iterdir()] == ["1"]


def test_tuning_works_inside_the_folder(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(old)
    again = tune_again(Path(), TuneOptions(max_batch=1), stage)
    assert again.folder.resolve() == old.parent / "2"


def test_folder_with_another_name_is_refused(old: Path) -> None:
    moved = old.parent.rename(old.parent.with_name("other")) / "1"
    with pytest.raises(UsageError, match="has the model 'tiny', so its new version would not"):
        tune_again(moved, TuneOptions(), stage)
    assert [path.name for path in moved.parent.iterdir()] == ["1"]
