"""The backend of compiled forms: the shared suite, and where it must not run."""

from __future__ import annotations

import io
import os
import re
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from app.backends.base import Backend
from app.backends.forward import FormBackend
from app.backends.golden import Golden
from app.errors import ArtifactInvalid, ModelError, ReplicaError, VariantUnusable
from app.registry.repository import Artifact, Repository
from app.types import Arrays, Device, ModelId
from models.manifest import NativeCode
from models.runtimes import packages
from models.runtimes.base import SharedModels
from tests.artifacts import Made, small_batch, small_variant, write_small
from tests.unit.app.backends.suite import SmallSuite
from tests.unit.models.manifests import form


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return written(tmp_path, small_variant("compiled"))


def written(root: Path, made: Made) -> Artifact:
    write_small(root, [], changed={"compiled": made})
    return Repository(root).open(ModelId("small", 1))


def backend_of(artifact: Artifact) -> FormBackend:
    return FormBackend(artifact.folder, artifact.manifest, form("compiled"), Device("cpu"))


class TestCompiledBackend(SmallSuite):
    @pytest.fixture(autouse=True)
    def _artifact(self, artifact: Artifact) -> None:
        self.artifact = artifact

    def make(self) -> Backend:
        return backend_of(self.artifact)


def test_golden_examples_hold_at_every_bucket(artifact: Artifact) -> None:
    backend = backend_of(artifact)
    backend.load()
    golden = Golden(artifact.manifest, artifact.manifest.variants["compiled"].tolerance)
    golden.replay(backend, (1, 2, 8, 33, 64, 100))


@pytest.mark.parametrize(
    "wrong",
    [
        {"picture": np.zeros((2, 1, 4, 4), np.float64)},
        {"picture": np.zeros((2, 1, 5, 4), np.float32)},
        {"shift": np.zeros((2, 9), np.float32)},
        {"shift": np.zeros((3, 3), np.float32)},
        {"shift": np.zeros((2, 0), np.float32)},
        {"picture": np.zeros((0, 1, 4, 4), np.float32), "shift": np.zeros((0, 3), np.float32)},
    ],
)
def test_unsupported_inputs_are_a_model_error(artifact: Artifact, wrong: Arrays) -> None:
    backend = backend_of(artifact)
    backend.load()
    with pytest.raises(ModelError, match="the package was compiled for"):
        backend.run({**small_batch(2), **wrong})
    assert backend.run(small_batch(2))


def changed(made: Made, **changes: object) -> Made:
    return Made(made.entry.model_copy(update=changes), made.data)


class TestUnusable:
    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            (
                {"native": NativeCode(architecture="riscv64", requires=("v",))},
                "compiled.pt2 is compiled for riscv64 with v; cpu here is ",
            ),
            (
                {"torch_version": "2.1.0"},
                "compiled.pt2 was compiled by torch 2.1.0 and runs only with",
            ),
            ({"device_kinds": ("cuda",)}, "compiled.pt2 runs on cuda, not on cpu"),
        ],
        ids=["architecture", "torch", "device"],
    )
    def test_unusable_package_is_refused_before_torch_loads(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], says: str
    ) -> None:
        monkeypatch.setattr(packages, "_load", lambda *_: pytest.fail("it was loaded"))
        backend = backend_of(written(tmp_path, changed(small_variant("compiled"), **changes)))
        with pytest.raises(VariantUnusable, match=re.escape(says)):
            backend.load()
        with pytest.raises(ReplicaError):
            backend.run(small_batch(1))
        backend.close()

    @pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux's memory files")
    def test_no_temporary_folder_is_needed(
        self, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(packages, "_LIBRARIES", {})
        monkeypatch.setattr(packages, "_PACKAGES", SharedModels())
        monkeypatch.setattr(tempfile, "tempdir", str(artifact.folder / "none"))
        backend = backend_of(artifact)
        backend.load()
        assert backend.run(small_batch(2))

    def test_an_archive_without_machine_code(self, tmp_path: Path) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("compiled/data/version", "1")
        made = Made(small_variant("compiled").entry, buffer.getvalue())
        backend = backend_of(written(tmp_path, made))
        with capture_logs() as logs, pytest.raises(VariantUnusable, match="could not be loaded"):
            backend.load()
        assert [log["event"] for log in logs] == ["form_not_loaded"]

    def test_an_unsafe_archive_is_not_a_machine_problem(self, tmp_path: Path) -> None:
        made = Made(small_variant("compiled").entry, b"no archive")
        with pytest.raises(ArtifactInvalid, match=r"^compiled\.pt2: .* not a zip arch") as caught:
            backend_of(written(tmp_path, made)).load()
        assert not isinstance(caught.value, VariantUnusable)
