"""A model in stages, from its export to its answers, on one device."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from export.errors import ParityError
from export.pipeline import ExportedArtifact
from models.integrity import IntegrityError, read_artifact
from models.manifest import MANIFEST_FILE, Manifest
from tests.artifacts import write_artifact
from tests.integration.harness import serving
from tests.unit.export.definitions import of_vectors
from tests.unit.export.jobs import make


class Halves(nn.Module):
    """x [n, 4] -> y [n, 2], through 8 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.second = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.second(self.first(x))
        return answer


def halves(module: nn.Module) -> Sequence[nn.Module]:
    assert isinstance(module, Halves)
    return module.first, module.second


STAGED = of_vectors(Halves, (4,), stages=halves)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ExportedArtifact:
    """Do not change it."""
    return make(tmp_path_factory.mktemp("made"), STAGED, "script", "staged")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the stages alone, and another model."""
    root = make(tmp_path_factory.mktemp("staged"), STAGED, "staged").folder.parents[1]
    write_artifact(root, "double")
    return root


def test_each_stage_has_a_file_with_a_digest(made: ExportedArtifact) -> None:
    variant = made.manifest.variants["staged"]
    assert variant.files == ("stage1.pt", "stage2.pt")
    assert variant.optimized is None
    assert variant.parity.max_absolute < 1e-5
    assert set(variant.files) <= set(made.manifest.files)
    report = (made.folder / "report.html").read_text()
    assert "stage1.pt, stage2.pt" in report
    plan = made.manifest.plan
    assert plan is not None
    timed = [str(times.form) for times in plan.devices[0].times]
    assert "staged" in timed


@pytest.mark.parametrize("variant", [None, "staged"])
async def test_a_staged_model_is_served(made: ExportedArtifact, variant: str | None) -> None:
    root = made.folder.parents[1]
    async with serving(root, variant=variant, cache_bytes=0) as api:
        whole = torch.jit.load(made.folder / "script.pt")  # type: ignore[no-untyped-call]
        for size in (1, 3, 7):
            x = np.random.default_rng(size).normal(size=(size, 4)).astype(np.float32)
            response = await api.client.post("/batch-predict", json={"inputs": x.tolist()})
            results = response.json()["predictions"]
            got = np.array([each["outputs"]["y"] for each in results], np.float32)
            with torch.inference_mode():
                wanted = whole(torch.from_numpy(x)).numpy()
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_an_altered_stage_is_detected(made: ExportedArtifact, tmp_path: Path) -> None:
    folder = shutil.copytree(made.folder, tmp_path / "tiny/1")
    file = folder / "stage2.pt"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match=r"stage2\.pt"):
        read_artifact(folder)


def test_stages_that_differ_from_the_model_are_rejected(tmp_path: Path) -> None:
    def wrong(module: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(module, Halves)
        return module.first, nn.Sequential(module.second, nn.Tanh())

    with pytest.raises(ParityError, match=r"^staged: .* to export without it: --variants script$"):
        make(tmp_path, of_vectors(Halves, (4,), stages=wrong), "script", "staged")
    assert list(tmp_path.iterdir()) == []


class TestManifest:
    def altered(self, made: ExportedArtifact, **changes: object) -> str:
        text = json.loads((made.folder / MANIFEST_FILE).read_text())
        text["variants"]["staged"] |= changes
        with pytest.raises(ValueError, match="validation error") as caught:
            Manifest.model_validate(text)
        return str(caught.value)

    def test_a_stage_without_a_digest(self, made: ExportedArtifact) -> None:
        problem = self.altered(made, later_stages=["stage2.pt", "stage3.pt"])
        assert "variant 'staged' names 'stage3.pt', which has no digest" in problem

    def test_two_stages_cannot_share_a_file(self, made: ExportedArtifact) -> None:
        problem = self.altered(made, later_stages=["stage1.pt"])
        assert "stage1.pt: each stage needs its own file" in problem

    def test_optimized_stages(self, made: ExportedArtifact) -> None:
        parity = json.loads(made.manifest.variants["staged"].parity.model_dump_json())
        assert "stages must be plain torchscript" in self.altered(made, optimized=parity)

    def test_a_manifest_without_stages_is_still_valid(self, made: ExportedArtifact) -> None:
        text = json.loads((made.folder / MANIFEST_FILE).read_text())
        del text["variants"]["script"]["later_stages"]
        again = Manifest.model_validate(text)
        assert again.variants["script"].files == ("script.pt",)


class TestSeveralDevices:
    """Of as many replicas as it has stages, it is on the first: each stage on the device of one."""

    @pytest.mark.parametrize(
        ("devices", "hosts", "form"),
        [
            ("cpu", ["cpu#0"], "staged"),
            ("cpu,cpu", ["cpu#0"], "staged on cpu, cpu"),
            ("cpu*3", ["cpu#0"], "staged on cpu, cpu"),
            ("cpu*4", ["cpu#0", "cpu#2"], "staged on cpu, cpu"),
        ],
    )
    async def test_placement_and_answers_of_a_staged_model(
        self, root: Path, devices: str, hosts: list[str], form: str
    ) -> None:
        async with serving(root, devices=devices, cache_bytes=0, default_model="tiny") as api:
            model = (await api.client.get("/models/tiny?full=true")).json()
            assert [each["name"] for each in model["replicas"]] == hosts
            assert {each["state"] for each in model["replicas"]} == {"ready"}
            assert {s["form"] for r in model["replicas"] for s in r["plan"]["steps"]} == {form}
            x = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
            response = await api.client.post("/batch-predict", json={"inputs": x.tolist()})
            got = [each["outputs"]["y"] for each in response.json()["predictions"]]
            one = await api.client.post("/predict", json={"input": x[7].tolist()})
            np.testing.assert_allclose(
                one.json()["prediction"]["outputs"]["y"], got[7], rtol=1e-4, atol=1e-5
            )
            assert len(got) == 50

    async def test_another_model_is_on_every_replica(self, root: Path) -> None:
        async with serving(root, devices="cpu,cpu", default_model="tiny") as api:
            models = (await api.client.get("/models?full=true")).json()["models"]
            found = {each["name"]: len(each["replicas"]) for each in models}
            assert found == {"tiny": 1, "double": 2}
            for name, x in (("tiny", [1, 2, 3, 4]), ("double", [1, 2])):
                answer = await api.client.post(f"/models/{name}/predict", json={"input": x})
                assert answer.status_code == 200, answer.text
