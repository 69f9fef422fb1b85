"""What an export writes into the manifest, and that the saved file is what was proved."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import pytest

from export.artifact import digest_of
from export.pipeline import ExportedArtifact, export, open_artifact
from models.definitions.definition import Progress
from models.integrity import read_artifact
from models.manifest import Manifest
from tests.unit.export.definitions import CATALOG, MIXED, definition
from tests.unit.export.jobs import content, job, make
from tests.unit.export.measured import on_cpu

TINY = CATALOG["tiny"]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> ExportedArtifact:
    return make(tmp_path_factory.mktemp("out"), TINY, "script", "bf16")


class TestManifest:
    def test_manifest_equals_the_one_on_disk(self, artifact: ExportedArtifact) -> None:
        text = (artifact.folder / "manifest.json").read_bytes()
        assert Manifest.model_validate_json(text) == artifact.manifest
        assert (
            read_artifact(artifact.folder)[0] == open_artifact(artifact.folder) == artifact.manifest
        )

    def test_contract_comes_from_the_definition(self, artifact: ExportedArtifact) -> None:
        manifest = artifact.manifest
        assert (manifest.model, manifest.version) == ("tiny", 1)
        assert manifest.description == TINY.description
        assert manifest.accuracy == 0.75
        assert (manifest.inputs, manifest.outputs) == (TINY.inputs, TINY.outputs)
        assert manifest.codec == TINY.codec
        assert manifest.example == [3.0, 4.0]

    def test_golden_examples_hold_the_eager_models_answers(
        self, artifact: ExportedArtifact
    ) -> None:
        golden = [
            (each.inputs["x"].array().tolist(), each.outputs["y"].array().tolist())
            for each in artifact.manifest.golden
        ]
        assert golden == [([3, 4], [6, 8]), ([0, -1], [0, -2])]

    def test_several_inputs_and_outputs_are_recorded(self, tmp_path: Path) -> None:
        manifest = make(tmp_path, MIXED).manifest
        assert [list(each.inputs) for each in manifest.golden] == [["x", "index"]] * 2
        following = [each.outputs["next"].array() for each in manifest.golden]
        assert [(int(array), array.dtype.name) for array in following] == [
            (1, "int64"),
            (300, "int64"),
        ]
        assert set(manifest.variants["script"].parity.outputs) == {"row", "next"}

    def test_time_and_commit_are_recorded(self, artifact: ExportedArtifact) -> None:
        created = artifact.manifest.created_at
        assert created.utcoffset() == dt.timedelta(0)
        assert abs(dt.datetime.now(dt.UTC) - created) < dt.timedelta(minutes=5)
        commit = artifact.manifest.git_commit
        assert commit is None or re.fullmatch("[0-9a-f]{40}", commit)

    def test_plan_covers_the_variants_made(self, artifact: ExportedArtifact) -> None:
        plan = artifact.manifest.plan
        assert plan is not None
        assert plan.precision == "float32"
        device = on_cpu(plan)
        assert device.processor.threads == 1
        assert [str(times.form) for times in device.times] == [
            "script",
            "script, optimized at load",
            "bf16",
            "bf16, optimized at load",
        ]
        assert {times.batch_sizes for times in device.times} == {(1, 2, 3)}
        assert set(device.steps) == {"float32", "bf16"}


class TestFiles:
    def test_every_file_has_a_digest(self, artifact: ExportedArtifact) -> None:
        names = {path.name for path in artifact.folder.iterdir()}
        assert names == {"manifest.json", "manifest.sha256", "script.pt", "bf16.pt", "report.html"}
        assert names - {"manifest.json", "manifest.sha256"} == set(artifact.manifest.files)
        for name, digest in artifact.manifest.files.items():
            assert digest == digest_of(artifact.folder / name)

    def test_the_manifest_has_its_digest_in_a_file(self, artifact: ExportedArtifact) -> None:
        digest = digest_of(artifact.folder / "manifest.json").sha256
        text = (artifact.folder / "manifest.sha256").read_text()
        assert text == f"{digest}  manifest.json\n"

    def test_next_export_does_not_change_the_artifact(self, tmp_path: Path) -> None:
        first = make(tmp_path)
        before = content(first.folder)
        second = make(tmp_path, definition(train=None))
        assert (second.folder.name, second.manifest.version) == ("2", 2)
        assert content(first.folder) == before


def test_steps_report_progress_and_every_form_is_profiled(tmp_path: Path) -> None:
    calls: dict[str, list[tuple[int, int]]] = {}

    def watched(name: str) -> Progress:
        return lambda done, total, note: calls.setdefault(name, []).append((done, total))

    manifest = export(job(tmp_path, profile=True), watched).manifest
    assert list(calls) == ["training", "eager", "script", "timing", "profiling"]
    assert calls["training"] == [(1, 1)]
    assert calls["timing"] == [(1, 3), (2, 3), (3, 3)]
    assert calls["profiling"][-1] == (1, 1)
    profiles = {name for name in manifest.files if name.startswith("profile-")}
    stems = ("eager", "script", "script-optimized")
    assert profiles == {f"profile-{stem}.{kind}" for stem in stems for kind in ("json.gz", "txt")}
