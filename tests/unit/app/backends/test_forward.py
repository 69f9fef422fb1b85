"""What every backend of torch does: a file that is checked, a forward, and whose fault it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from app.backends import forward as module
from app.backends.faults import NO_HOST_MEMORY
from app.backends.forward import FormBackend, run_forward
from app.errors import (
    ArtifactInvalid,
    DeviceLost,
    ModelError,
    OutOfMemory,
    ReplicaError,
    TorchlaneError,
    VariantUnusable,
)
from app.registry.repository import Artifact, Repository
from app.types import Arrays, Device, ModelId
from models.manifest import Format
from models.runtimes.base import VariantFile
from models.runtimes.forms import Forward, WrongMachine
from models.system.archive import ArchiveError
from models.system.extras import NotInstalled
from models.timing import WARM_RUNS
from tests.artifacts import write_artifact
from tests.unit.models.manifests import form

CPU = torch.device("cpu")
ONE = {"x": np.array([[1, 2]], np.float32)}


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    write_artifact(tmp_path, "double")
    return Repository(tmp_path).open(ModelId("double", 1))


CUBLAS = "CUDA error: CUBLAS_STATUS"  # as torch begins what it says of cuBLAS


class Scripted(FormBackend):
    """Loads its file as the test says."""

    def __init__(self, artifact: Artifact, load: Callable[[bytes], Forward]) -> None:
        super().__init__(artifact.folder, artifact.manifest, form(), Device("cpu"))
        self._load = load

    def open_files(self, names: Sequence[str], device: torch.device) -> Forward:
        def load_form(files: Sequence[VariantFile], *_: object, **__: object) -> Forward:
            with files[0].open() as path:
                return self._load(Path(path).read_bytes())

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "load_form", load_form)
            return super().open_files(names, device)


def fails(error: BaseException) -> Callable[..., Forward]:
    def work(*arguments: object) -> Forward:
        raise error

    return work


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


REFUSED = "script.pt is not a TorchScript file that this version of torch can read"


class TestLoad:
    def test_backend_opens_the_variants_file(self, artifact: Artifact) -> None:
        seen: list[bytes] = []

        def opened(data: bytes) -> Forward:
            seen.append(data)
            return doubled

        backend = Scripted(artifact, opened)
        backend.load()
        assert seen == [(artifact.folder / "script.pt").read_bytes()]
        np.testing.assert_array_equal(backend.run(ONE)["y"], [[2, 4]])

    @pytest.mark.parametrize(
        ("error", "becomes", "says"),
        [
            (torch.AcceleratorError("sticky"), DeviceLost, "sticky"),
            (torch.OutOfMemoryError("2 GiB"), ReplicaError, "the model does not fit on cpu: 2 GiB"),
            (ArchiveError("it is a bomb"), ArtifactInvalid, "script.pt: it is a bomb"),
            (RuntimeError("/a/path"), ArtifactInvalid, REFUSED),
            (ValueError("/a/path"), ArtifactInvalid, REFUSED),
            (OSError(28, "No space left on device"), ArtifactInvalid, REFUSED),
            (WrongMachine("made for another"), VariantUnusable, "made for another"),
            (NotInstalled("it needs it"), VariantUnusable, "script.pt: it needs it"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
    )
    def test_load_errors_are_classified(
        self, artifact: Artifact, error: Exception, becomes: type[TorchlaneError], says: str
    ) -> None:
        backend = Scripted(artifact, fails(error))
        with capture_logs() as logs, pytest.raises(TorchlaneError) as caught:
            backend.load()
        assert (type(caught.value), str(caught.value)) == (becomes, says)
        if says == REFUSED:  # torch's words hold paths and code: they are for the log
            event = {"event": "form_not_loaded", "file": "script.pt", "form": "script"}
            assert [event | {"error": str(error), "log_level": "error"}] == logs
        backend.close()

    def test_changed_file_is_never_opened(self, artifact: Artifact) -> None:
        path = artifact.folder / "script.pt"
        path.write_bytes(path.read_bytes()[:-1] + b"~")
        backend = Scripted(artifact, lambda data: pytest.fail("it was opened"))
        with pytest.raises(ArtifactInvalid, match=r"^script\.pt has SHA-256 [0-9a-f]{64}, the man"):
            backend.load()

    def test_a_larger_file_is_refused_before_reading(self, artifact: Artifact) -> None:
        os.truncate(artifact.folder / "script.pt", 2**40)  # a hole, which takes no room on the disk
        backend = Scripted(artifact, lambda data: pytest.fail("it was opened"))
        with pytest.raises(ArtifactInvalid, match=r"^script\.pt has 1099511627776 bytes, the mani"):
            backend.load()


class TestBackend:
    def test_it_runs_only_between_load_and_close(self, artifact: Artifact) -> None:
        backend = Scripted(artifact, lambda data: doubled)
        with pytest.raises(ReplicaError, match=r"^bug: the backend runs although it is not loaded"):
            backend.run(ONE)
        backend.load()
        assert backend.run(ONE)
        backend.close()
        with pytest.raises(ReplicaError, match=r"^bug: "):
            backend.run(ONE)

    @pytest.mark.parametrize(("file_format", "runs"), [("torchscript", WARM_RUNS), ("onnx", 1)])
    def test_warm_up_runs_each_batch_as_its_format_needs(
        self,
        artifact: Artifact,
        monkeypatch: pytest.MonkeyPatch,
        file_format: Format,
        runs: int,
    ) -> None:
        sizes: list[int] = []

        def forward(x: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return x

        backend = Scripted(artifact, lambda data: forward)
        backend.load()
        backend.variant = backend.variant.model_copy(update={"format": file_format})
        batches = [{"x": np.ones((size, 2), np.float32)} for size in (1, 4)]
        backend.warm_up(batches)
        assert sizes == [1] * runs + [4] * runs
        assert WARM_RUNS >= 3
        sizes.clear()
        monkeypatch.setattr(module, "SLOW_S", 0.0)
        backend.warm_up(batches)
        assert bool(sizes) == (file_format == "torchscript")  # the replay will run slow ones


class TestRunForward:
    def run(self, artifact: Artifact, forward: Forward, inputs: Arrays = ONE) -> Arrays:
        return run_forward(forward, inputs, artifact.manifest, CPU)

    @pytest.mark.parametrize(
        ("error", "becomes", "says"),
        [
            (torch.OutOfMemoryError("2 GiB"), OutOfMemory, "out of memory on cpu"),
            (RuntimeError(f"[x] {NO_HOST_MEMORY}: you"), OutOfMemory, "out of memory on cpu"),
            (torch.AcceleratorError("sticky"), DeviceLost, "sticky"),
            (
                torch.AcceleratorError("CUDA error: out of memory"),
                OutOfMemory,
                "out of memory on cpu",
            ),
            (
                RuntimeError("x: CUDA error: illegal access"),
                DeviceLost,
                "x: CUDA error: illegal access",
            ),
            (RuntimeError(f"{CUBLAS}_INTERNAL_ERROR"), DeviceLost, f"{CUBLAS}_INTERNAL_ERROR"),
            (RuntimeError(f"{CUBLAS}_NOT_SUPPORTED"), ModelError, f"{CUBLAS}_NOT_SUPPORTED"),
            (RuntimeError(f"{CUBLAS}_NOT_INITIALIZED when"), OutOfMemory, "out of memory on cpu"),
            (RuntimeError("mat1 and mat2"), ModelError, "mat1 and mat2"),
            (ValueError("no such shape"), ModelError, "no such shape"),
            (TypeError("no tensor"), ModelError, "no tensor"),
            (MemoryError("32 TiB"), OutOfMemory, "out of memory on cpu"),
            (torch.jit.Error("too large"), ModelError, "too large"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
    )
    def test_forward_errors_are_classified(
        self, artifact: Artifact, error: Exception, becomes: type[TorchlaneError], says: str
    ) -> None:
        with pytest.raises(TorchlaneError) as caught:
            self.run(artifact, fails(error))
        assert (type(caught.value), str(caught.value)) == (becomes, says)

    @pytest.mark.parametrize(
        ("made", "says"),
        [
            (torch.ones(1, 2).double(), "output 'y' is torch.float64, not float32"),
            ((torch.ones(1, 2),) * 2, "the model returned 2 outputs, but 1 are declared"),
            (None, "output 'y' is not a tensor but NoneType"),
        ],
    )
    def test_wrong_outputs_are_a_model_error(
        self, artifact: Artifact, made: object, says: str
    ) -> None:
        with pytest.raises(ModelError, match=says):
            self.run(artifact, lambda x: made)

    def test_read_only_inputs_are_copied(self, artifact: Artifact) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2)  # a model that writes to what it is given

        inputs = {"x": np.array([[1, 2]], np.float32)}
        inputs["x"].setflags(write=False)
        np.testing.assert_array_equal(self.run(artifact, forward, inputs)["y"], [[2, 4]])
        np.testing.assert_array_equal(inputs["x"], [[1, 2]])
