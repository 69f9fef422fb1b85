"""The TorchScript backend: the shared suite, and what is its own."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from app.backends.base import Backend
from app.backends.forward import FormBackend
from app.backends.golden import Golden
from app.errors import ArtifactInvalid, VariantUnusable
from app.registry.repository import Artifact, Repository
from app.types import Arrays, Device, ModelId
from models.plan import Form
from tests.artifacts import Double, Made, scripted, small_batch, write_artifact, write_small
from tests.unit.app.backends.suite import BackendSuite

CPU = Device("cpu")
PLAIN = Form(variant="script")
OPTIMIZED = Form(variant="script", optimized=True)


def backend_of(artifact: Artifact, device: Device = CPU, form: Form = PLAIN) -> FormBackend:
    return FormBackend(artifact.folder, artifact.manifest, form, device)


class TestTorchScriptBackend(BackendSuite):
    @pytest.fixture(autouse=True)
    def _artifact(self, tmp_path: Path) -> None:
        write_artifact(tmp_path, "double")
        self.artifact = Repository(tmp_path).open(ModelId("double", 1))

    def make(self) -> Backend:
        return backend_of(self.artifact)

    def batch(self, size: int) -> Arrays:
        return {"x": np.arange(2 * size, dtype=np.float32).reshape(size, 2)}

    def bad_batch(self) -> Arrays:
        return {"x": np.full((2, 2), 1000, np.float32)}


class TestSmallBackends(BackendSuite):
    """Every TorchScript form of one model, as export makes them."""

    @pytest.fixture(
        autouse=True,
        params=[Form(variant=v, optimized=o) for v in ("script", "bf16") for o in (False, True)],
        ids=str,
    )
    def _form(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.form: Form = request.param
        write_small(tmp_path, [self.form.variant])
        self.artifact = Repository(tmp_path).open(ModelId("small", 1))

    def make(self) -> Backend:
        return backend_of(self.artifact, form=self.form)

    def batch(self, size: int) -> Arrays:
        return small_batch(size)

    def bad_batch(self) -> Arrays:
        return {**small_batch(2), "picture": np.zeros((2, 1, 2, 2), np.float32)}

    def test_golden_examples_hold_at_every_bucket(self, backend: Backend) -> None:
        tolerance = self.artifact.manifest.variants[self.form.variant].tolerance
        Golden(self.artifact.manifest, tolerance).replay(backend, (1, 2, 8, 33, 64, 100))


class TestRejections:
    def written(self, root: Path, made: Made) -> Artifact:
        write_artifact(root, "double", variants={"script": made})
        return Repository(root).open(ModelId("double", 1))

    def test_a_file_that_is_not_an_archive(self, tmp_path: Path) -> None:
        artifact = self.written(tmp_path, Made(scripted(Double()).entry, b"not a model"))
        with pytest.raises(ArtifactInvalid, match=r"^script\.pt: .* is not a zip archive"):
            backend_of(artifact).load()

    def test_an_archive_without_torchscript(self, tmp_path: Path) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("script/data.pkl", b"no pickle")
        artifact = self.written(tmp_path, Made(scripted(Double()).entry, buffer.getvalue()))
        message = r"^script\.pt is not a TorchScript file that this version of torch can read$"
        with capture_logs() as logs, pytest.raises(ArtifactInvalid, match=message) as caught:
            backend_of(artifact).load()
        assert not isinstance(caught.value, VariantUnusable)
        assert [log["event"] for log in logs] == ["form_not_loaded"]

    def test_a_torch_without_torchscript_leaves_the_variant_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        artifact = self.written(tmp_path, scripted(Double()))
        monkeypatch.delattr(torch, "jit")
        version = re.escape(torch.__version__)
        message = rf"^script\.pt is TorchScript, which torch {version} does not run: export "
        with pytest.raises(VariantUnusable, match=message):
            backend_of(artifact).load()

    def test_unoptimizable_model_still_runs_unoptimized(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def rejects(module: object) -> None:
            raise RuntimeError("no such pass")

        monkeypatch.setattr(torch.jit, "optimize_for_inference", rejects)
        artifact = self.written(tmp_path, scripted(Double(), optimized=True))
        message = r"^script, optimized at load: torch cannot optimize script\.pt here$"
        with capture_logs(), pytest.raises(VariantUnusable, match=message):
            backend_of(artifact, form=OPTIMIZED).load()
        backend = backend_of(artifact)
        backend.load()
        assert backend.run({"x": np.ones((1, 2), np.float32)})


def test_loading_disables_tf32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # torch's own default
    write_artifact(tmp_path, "double")
    backend_of(Repository(tmp_path).open(ModelId("double", 1))).load()
    assert not torch.backends.cudnn.allow_tf32
