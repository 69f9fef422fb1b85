"""The backend of other runtimes: the shared suite for each, and where it cannot run."""

from __future__ import annotations

import re
import sys
import threading
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch

from app.backends.base import Backend
from app.backends.factory import TorchBackends
from app.backends.forward import FormBackend
from app.backends.golden import Golden
from app.backends.selection import Preference, select
from app.errors import ArtifactInvalid, VariantUnusable
from app.registry.repository import Artifact, Repository
from app.types import Device, ModelId
from models.runtimes.openvino_models import GRAPH, WEIGHTS, pack
from tests.artifacts import Made, small_batch, small_variant, write_small
from tests.unit.app.backends.suite import SmallSuite
from tests.unit.models.manifests import form

CPU = Device("cpu")
# Variant -> its package, the package's name for people, the extra.
RUNTIMES = {
    "openvino": ("openvino", "OpenVINO", "openvino"),
    "onnx": ("onnxruntime", "ONNX Runtime", "onnx"),
    "int8": ("openvino", "OpenVINO", "openvino"),
}
NEWER = b"\x42\x03\x10\xe7\x07"  # opset_import { version: 999 }
ANOTHER_FILE = b"\x3a\x06\x2a\x04\x6a\x00\x70\x01"  # graph { initializer { external_data {} } }
FOREIGN = b"\x3a\x09\x0a\x07\x22\x01f\x3a\x02me"  # graph { node { op_type: "f" domain: "me" } }


def written(root: Path, variant: str, data: bytes | None = None, *others: str) -> Artifact:
    made = small_variant(variant)
    changed = {variant: made if data is None else Made(made.entry, data)}
    write_small(root, list(others), changed=changed)
    return Repository(root).open(ModelId("small", 1))


@pytest.fixture(params=RUNTIMES)
def variant(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def artifact(tmp_path: Path, variant: str) -> Artifact:
    return written(tmp_path, variant)


def backend_of(artifact: Artifact) -> FormBackend:
    name = next(each for each in artifact.manifest.variants if each in RUNTIMES)
    return FormBackend(artifact.folder, artifact.manifest, form(name), CPU, 2)


class TestRuntimeBackend(SmallSuite):
    @pytest.fixture(autouse=True)
    def _artifact(self, artifact: Artifact) -> None:
        self.artifact = artifact

    def make(self) -> Backend:
        return backend_of(self.artifact)


def test_golden_examples_hold_at_every_bucket(artifact: Artifact, variant: str) -> None:
    backend = backend_of(artifact)
    backend.load()
    golden = Golden(artifact.manifest, artifact.manifest.variants[variant].tolerance)
    golden.replay(backend, (1, 2, 8, 33, 64, 100))


def test_threads_share_a_form(artifact: Artifact) -> None:
    """One form runs several batches at once."""
    backend = backend_of(artifact)
    backend.load()
    wrong: list[int] = []
    alone = {size: backend.run(small_batch(size))["y"] for size in (1, 3, 8)}

    def work(size: int) -> None:
        batch, wanted = small_batch(size), alone[size]
        for _ in range(200):
            if not np.allclose(backend.run(batch)["y"], wanted, rtol=1e-4, atol=1e-5):
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class TestUnusable:
    def test_without_the_package_the_next_best_form_serves(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
    ) -> None:
        artifact = written(tmp_path, variant, None, "script")
        package, name, extra = RUNTIMES[variant]
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(VariantUnusable) as caught:
            backend_of(artifact).load()
        file = artifact.manifest.variants[variant].file
        assert str(caught.value) == f"{file}: it needs {name}: pip install 'torchlane[{extra}]'"
        makes = TorchBackends((CPU,), 8, torch.get_num_threads())
        selection = select(artifact.manifest, Preference())
        backend = makes.make(artifact.folder, artifact.manifest, "digest", selection, CPU)
        backend.load()
        backend.warm_up([small_batch(1), small_batch(2)])
        assert {step.form.partition(",")[0] for step in backend.serving().steps} == {"script"}

    def test_a_graph_of_another_release(self, tmp_path: Path, variant: str) -> None:
        newer = {
            "openvino": pack(b"<net version='99'/>", b""),
            "onnx": small_variant("onnx").data + NEWER,
            "int8": pack(b"<net version='99'/>", b""),
        }
        _, name, _ = RUNTIMES[variant]
        with pytest.raises(VariantUnusable, match=f"by the installed release of {name}"):
            backend_of(written(tmp_path, variant, newer[variant])).load()

    @pytest.mark.parametrize(
        ("added", "why"),
        [
            (b"\x3a\xff", "is not an ONNX model, or is damaged"),
            (ANOTHER_FILE, "weights in another file"),
            (FOREIGN, "the operator 'f' of 'me'"),
        ],
    )
    def test_an_onnx_model_that_must_not_run(self, tmp_path: Path, added: bytes, why: str) -> None:
        artifact = written(tmp_path, "onnx", small_variant("onnx").data + added)
        with pytest.raises(ArtifactInvalid, match=re.escape(why)) as caught:
            backend_of(artifact).load()
        assert not isinstance(caught.value, VariantUnusable)

    def test_a_damaged_archive(self, tmp_path: Path) -> None:
        data = small_variant("openvino").data
        at = data.index(b"<net ")
        damaged = data[: at + 1] + b"N" + data[at + 2 :]
        with pytest.raises(ArtifactInvalid, match="damaged: Bad CRC-32"):
            backend_of(written(tmp_path, "openvino", damaged)).load()

    @pytest.mark.parametrize("names", [[GRAPH], [WEIGHTS], [GRAPH, WEIGHTS, "plugin.so"]])
    def test_an_archive_with_other_files(self, tmp_path: Path, names: list[str]) -> None:
        data = BytesIO()
        with zipfile.ZipFile(data, "w") as archive:
            for name in names:
                archive.writestr(name, b"")
        with pytest.raises(ArtifactInvalid, match=f"must contain {GRAPH} and {WEIGHTS}") as caught:
            backend_of(written(tmp_path, "openvino", data.getvalue())).load()
        assert not isinstance(caught.value, VariantUnusable)


def test_answers_are_not_overwritten_by_the_next(artifact: Artifact) -> None:
    backend = backend_of(artifact)
    backend.load()
    first = backend.run(small_batch(4))["y"]
    before = first.copy()
    backend.run({name: array + 1 for name, array in small_batch(4).items()})
    np.testing.assert_array_equal(first, before)
