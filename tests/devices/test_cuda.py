"""A real GPU: streams, several replicas, memory. Skipped where there is none."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from app.backends.base import Backend
from app.backends.cuda import streams_of
from app.backends.devices import find_devices
from app.backends.forward import FormBackend
from app.backends.golden import Golden
from app.backends.lane import Lane
from app.registry.repository import Artifact, Repository
from app.types import Arrays, Device, ModelId
from models.plan import Form
from models.runtimes.forms import compute_in_float32
from tests.artifacts import small_batch, write_artifact, write_small
from tests.integration.harness import serving
from tests.unit.app.backends.suite import BackendSuite

pytestmark = pytest.mark.gpu
GPU = Device("cuda", 0)
CUDA = torch.device("cuda:0")
SIZES = (1, 2, 3, 5, 8, 9, 33, 64)


def backend_of(artifact: Artifact, name: str = "script") -> FormBackend:
    return FormBackend(artifact.folder, artifact.manifest, Form(variant=name), GPU)


class TestCudaBackend(BackendSuite):
    """The shared suite; this model reads its input's values, so that it waits for the device."""

    shared = False

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


class TestSmallVariants(BackendSuite):
    """Every TorchScript variant of one model that runs on a GPU."""

    shared = False

    @pytest.fixture(autouse=True, params=["script", "bf16", "fp16"])
    def _variant(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.variant = request.param
        write_small(tmp_path, [self.variant])
        self.artifact = Repository(tmp_path).open(ModelId("small", 1))

    def make(self) -> Backend:
        return backend_of(self.artifact, name=self.variant)

    def batch(self, size: int) -> Arrays:
        return small_batch(size)

    def bad_batch(self) -> Arrays:
        return {**small_batch(2), "picture": np.zeros((2, 1, 2, 2), np.float32)}

    def test_golden_examples_hold(self, backend: Backend) -> None:
        tolerance = self.artifact.manifest.variants[self.variant].tolerance
        Golden(self.artifact.manifest, tolerance).replay(backend, (1, 2, 8, 33, 64, 100))


def test_named_devices_keep_order_and_must_differ() -> None:
    assert find_devices("cuda:0", 2) == (GPU,) * 2
    with pytest.raises(ValueError, match="name each at most once"):
        find_devices("cuda:0,cuda:0", 1)


@pytest.mark.parametrize("name", ["digits", "pairwise"])
def test_golden_examples_of_exports_hold(repository: Path, name: str) -> None:
    artifact = Repository(repository).open(ModelId(name, 1))
    golden = Golden(artifact.manifest, artifact.manifest.variants["script"].tolerance)
    backend = backend_of(artifact)
    backend.load()
    backend.warm_up(golden.batches((1, 8, 64)))
    golden.replay(backend, (1, 8, 64))
    backend.close()


@pytest.fixture
def digits(repository: Path) -> Artifact:
    return Repository(repository).open(ModelId("digits", 1))


def images(count: int, seed: int = 0) -> Arrays:
    drawn = np.random.default_rng(seed).standard_normal((count, 1, 32, 32), dtype=np.float32)
    return {"image": drawn}


def forward_of(artifact: Artifact) -> nn.Module:
    load = torch.jit.load
    module: nn.Module = load(artifact.folder / "script.pt", map_location=CUDA)  # type: ignore[no-untyped-call]
    return module


def test_streams_match_a_plain_forward(digits: Artifact) -> None:
    compute_in_float32()
    plain = forward_of(digits)
    lane = Lane(forward_of(digits), digits.manifest, streams_of(CUDA), CUDA)
    tolerance = digits.manifest.variants["script"].tolerance
    for size in SIZES:
        batch = images(size, seed=size)
        with torch.inference_mode():
            wanted = plain(torch.from_numpy(batch["image"]).to(CUDA)).cpu().numpy()
        got = lane.launch(batch).outputs()["scores"]
        for row in range(size):
            assert tolerance.excess(wanted[row], got[row]) is None
    lane.close()


def test_two_batches_in_flight_get_their_own_answers(digits: Artifact) -> None:
    backend = backend_of(digits)
    backend.load()
    backend.warm_up([images(size) for size in (1, 2, 4, 8, 16)])
    alone = {n: backend.run(images(1 + n % 16, n))["scores"].copy() for n in range(40)}
    before = backend.launch(images(1, 0))
    for n in range(1, 200):
        batch = images(1 + n % 40 % 16, n % 40)
        staged = backend.stage({"image": batch["image"].shape})
        staged["image"][:] = batch["image"]
        launched = backend.launch(staged)
        np.testing.assert_allclose(
            before.outputs()["scores"], alone[(n - 1) % 40], rtol=1e-4, atol=1e-4
        )
        times = before.times()
        assert min(times) > 0
        before = launched
    before.outputs()
    backend.close()


def test_replicas_on_one_gpu_run_in_parallel(digits: Artifact) -> None:
    wanted = backend_of(digits)
    wanted.load()
    expected = wanted.run(images(8))["scores"].copy()
    failures: list[BaseException] = []

    def replica() -> None:
        try:
            backend = backend_of(digits)
            backend.load()
            backend.warm_up([images(size) for size in (1, 2, 4, 8)])
            for _ in range(100):
                got = backend.run(images(8))["scores"]
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
            backend.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=replica) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("name", ["digits", "double"])
def test_reloads_leak_no_memory(repository: Path, tmp_path: Path, name: str) -> None:
    if name == "double":
        write_artifact(tmp_path, name)
    artifact = Repository(repository if name == "digits" else tmp_path).open(ModelId(name, 1))
    batches = [
        images(size) if name == "digits" else {"x": np.ones((size, 2), np.float32)}
        for size in (1, 8, 64)
    ]
    used, reserved = [], []
    for _ in range(20):
        backend = backend_of(artifact)
        backend.load()
        backend.warm_up(batches)
        backend.run(batches[-1])
        backend.close()
        del backend
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        used.append(torch.cuda.memory_allocated())
        reserved.append(torch.cuda.memory_reserved())
    assert used[-1] <= used[3]
    assert reserved[-1] <= reserved[3]


async def test_application_answers_correctly_on_the_gpu(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    async with serving(tmp_path, devices="cuda:0", cache_bytes=0) as api:
        items = [[number / 10, -number / 10] for number in range(300)]
        response = await api.client.post("/batch-predict", json={"inputs": items})
        got = [each["outputs"]["y"] for each in response.json()["predictions"]]
        np.testing.assert_allclose(got, 2 * np.array(items), rtol=1e-6)
        for stage in ("copy_in", "compute", "copy_out"):
            assert await api.metric("torchlane_replica_device_seconds_total", stage=stage) > 0


LOST = """
import sys
from pathlib import Path

import numpy as np

from app.backends.forward import FormBackend
from app.errors import DeviceLost
from app.registry.repository import Repository
from app.types import Device, ModelId
from models.plan import Form

artifact = Repository(Path(sys.argv[1])).open(ModelId("table", 1))
form = Form(variant="script")
backend = FormBackend(artifact.folder, artifact.manifest, form, Device("cuda", 0))
backend.load()
for value in (1000.0, 1.0):  # the second would be right
    try:
        backend.run({"x": np.full((8, 2), value, np.float32)})
    except DeviceLost:
        print("lost")
"""


class Table(nn.Module):
    """x [n, 2] -> y [n, 2], looked up in a table of four."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.arange(4.0), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table[x.to(torch.int64)]


def test_sticky_error_is_a_lost_device(tmp_path: Path) -> None:
    write_artifact(tmp_path, "table", module=Table(), golden=[{"x": np.ones(2, np.float32)}])
    command = [sys.executable, "-c", LOST, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split() == ["lost", "lost"]
