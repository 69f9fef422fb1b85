"""The backend of OpenVINO: the shared suite, and where it cannot run."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch

from app.backends.base import Backend
from app.backends.factory import TorchBackends
from app.backends.golden import Golden
from app.backends.openvino import OpenVinoBackend
from app.backends.selection import Preference, select
from app.errors import ArtifactInvalid, VariantUnusable
from app.registry.repository import Artifact, Repository
from app.types import Device, ModelId
from models.openvino_models import GRAPH, WEIGHTS, OpenVinoForm, packed
from models.packages import Packages
from tests.artifacts import Made, small_answer, small_batch, small_variant, write_small
from tests.unit.app.backends.suite import SmallSuite
from tests.unit.models.manifests import form

pytest.importorskip("openvino", reason="needs OpenVINO: pip install 'torchlane[openvino]'")
CPU = Device("cpu")


def written(root: Path, made: Made | None = None, *others: str) -> Artifact:
    write_small(root, list(others), changed={"openvino": made or small_variant("openvino")})
    return Repository(root).open(ModelId("small", 1))


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return written(tmp_path)


def backend_of(artifact: Artifact) -> OpenVinoBackend:
    return OpenVinoBackend(artifact.folder, artifact.manifest, form("openvino"), CPU, 2)


class TestOpenVinoBackend(SmallSuite):
    @pytest.fixture(autouse=True)
    def _artifact(self, artifact: Artifact) -> None:
        self.artifact = artifact

    def make(self) -> Backend:
        return backend_of(self.artifact)


def test_golden_examples_hold_at_every_bucket(artifact: Artifact) -> None:
    backend = backend_of(artifact)
    backend.load()
    golden = Golden(artifact.manifest, artifact.manifest.variants["openvino"].tolerance)
    golden.replay(backend, (1, 2, 8, 33, 64, 100))


def test_replicas_share_the_weights_until_the_last_is_closed(artifact: Artifact) -> None:
    first, second = backend_of(artifact), backend_of(artifact)
    for backend in (first, second):
        backend.load()
    one, other = first._forward, second._forward
    assert isinstance(one, OpenVinoForm)
    assert isinstance(other, OpenVinoForm)
    assert one is not other
    assert one._compiled is other._compiled
    kept = weakref.ref(one._compiled)
    del one, other
    first.close()
    assert second.run(small_batch(3))
    second.close()
    gc.collect()
    assert kept() is None


def test_threads_share_a_form(artifact: Artifact) -> None:
    """Each has requests of its own: one that runs accepts no other input."""
    backend = backend_of(artifact)
    backend.load()
    wrong: list[int] = []

    def work(size: int) -> None:
        batch = small_batch(size)
        wanted = small_answer(batch)["y"]
        for _ in range(200):
            if not np.allclose(backend.run(batch)["y"], wanted, rtol=1e-4, atol=1e-5):
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 3, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_answers_are_not_overwritten_by_the_next(artifact: Artifact) -> None:
    backend = backend_of(artifact)
    backend.load()
    first = backend.run(small_batch(4))["y"]
    before = first.copy()
    backend.run({name: array + 1 for name, array in small_batch(4).items()})
    np.testing.assert_array_equal(first, before)


class TestUnusable:
    def test_without_the_package_the_next_best_form_serves(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        artifact = written(tmp_path, None, "script")
        monkeypatch.setitem(sys.modules, "openvino", None)
        with pytest.raises(VariantUnusable) as caught:
            backend_of(artifact).load()
        assert str(caught.value) == (
            "openvino.zip: it needs OpenVINO: pip install 'torchlane[openvino]'"
        )
        makes = TorchBackends((CPU,), 8, torch.get_num_threads(), Packages())
        selection = select(artifact.manifest, Preference())
        backend = makes.make(artifact.folder, artifact.manifest, "digest", selection, CPU)
        backend.load()
        backend.warm_up([small_batch(1), small_batch(2)])
        assert {step.form.partition(",")[0] for step in backend.serving().steps} == {"script"}

    def test_a_graph_of_another_release(self, tmp_path: Path) -> None:
        made = small_variant("openvino")
        broken = packed(b"<net version='99'/>", b"")
        with pytest.raises(VariantUnusable, match="by the installed release of OpenVINO"):
            backend_of(written(tmp_path, Made(made.entry, broken))).load()

    def test_a_damaged_archive(self, tmp_path: Path) -> None:
        made = small_variant("openvino")
        at = made.data.index(b"<net ")
        damaged = made.data[: at + 1] + b"N" + made.data[at + 2 :]
        with pytest.raises(ArtifactInvalid, match="damaged: Bad CRC-32"):
            backend_of(written(tmp_path, Made(made.entry, damaged))).load()

    @pytest.mark.parametrize("names", [[GRAPH], [WEIGHTS], [GRAPH, WEIGHTS, "plugin.so"]])
    def test_an_archive_with_other_files(self, tmp_path: Path, names: list[str]) -> None:
        data = BytesIO()
        with zipfile.ZipFile(data, "w") as archive:
            for name in names:
                archive.writestr(name, b"")
        made = Made(small_variant("openvino").entry, data.getvalue())
        with pytest.raises(ArtifactInvalid, match=f"must contain {GRAPH} and {WEIGHTS}") as caught:
            backend_of(written(tmp_path, made)).load()
        assert not isinstance(caught.value, VariantUnusable)
