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
from tests.integration.harness import Api, serving
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


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"later_stages": ["stage2.pt", "stage3.pt"]},
            "variant 'staged' names 'stage3.pt', which has no digest",
        ),
        ({"later_stages": ["stage1.pt"]}, "stage1.pt: each stage needs its own file"),
        ({"optimized": ...}, "stages must be plain torchscript"),
    ],
)
def test_a_manifest_with_wrong_stages_is_refused(
    made: ExportedArtifact, changes: dict[str, object], problem: str
) -> None:
    text = json.loads((made.folder / MANIFEST_FILE).read_text())
    staged = text["variants"]["staged"]
    staged |= {name: staged["parity"] if it is ... else it for name, it in changes.items()}
    with pytest.raises(ValueError, match="validation error") as caught:
        Manifest.model_validate(text)
    assert problem in str(caught.value)


def test_a_manifest_without_stages_is_still_valid(made: ExportedArtifact) -> None:
    text = json.loads((made.folder / MANIFEST_FILE).read_text())
    del text["variants"]["script"]["later_stages"]
    again = Manifest.model_validate(text)
    assert again.variants["script"].files == ("script.pt",)


@pytest.mark.parametrize(
    ("devices", "hosts", "form"),
    [("cpu", ["cpu#0"], "staged"), ("cpu*4", ["cpu#0", "cpu#2"], "staged on cpu, cpu")],
)
async def test_each_stage_is_on_the_device_of_one_replica(
    made: ExportedArtifact, devices: str, hosts: list[str], form: str
) -> None:
    """Of as many replicas as it has stages, it is on the first."""
    root = made.folder.parents[1]
    async with serving(root, devices=devices, variant="staged", cache_bytes=0) as api:
        model = (await api.client.get("/models/tiny?full=true")).json()
        assert [each["name"] for each in model["replicas"]] == hosts
        assert {each["state"] for each in model["replicas"]} == {"ready"}
        assert {s["form"] for r in model["replicas"] for s in r["plan"]["steps"]} == {form}
        await check_answers(api, made)


async def check_answers(api: Api, made: ExportedArtifact) -> None:
    """They are those of the whole model."""
    whole = torch.jit.load(made.folder / "script.pt")  # type: ignore[no-untyped-call]
    for size in (1, 50):
        x = np.random.default_rng(size).normal(size=(size, 4)).astype(np.float32)
        response = await api.client.post("/models/tiny/batch-predict", json={"inputs": x.tolist()})
        got = [each["outputs"]["y"] for each in response.json()["predictions"]]
        with torch.inference_mode():
            answer = whole(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(got, answer, rtol=1e-4, atol=1e-5)
