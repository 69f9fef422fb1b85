"""A model in stages on several devices: answers, parallel stages, and faults."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.backends.base import Backend
from app.backends.pipeline import Pipeline, PipelineBackend, Stage
from app.errors import ArtifactInvalid, DeviceLost, ModelError, OutOfMemory, ReplicaError
from app.types import Arrays, Device
from export.artifact import digest_of
from export.variants.base import TOLERANCES
from models.manifest import Manifest, Variant
from models.plan import Form
from tests.artifacts import EXACT, Double, write_artifact
from tests.unit.app.backends.suite import BackendSuite

CPU = torch.device("cpu")
STAGED = Form(variant="staged")


class Half(torch.nn.Module):
    """x [n, 2] -> x, and 1 for each: the second stage takes both."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if bool((x > 100).any()):
            raise ValueError("too large: /a/secret/path")
        return x, torch.ones_like(x)


class Sum(torch.nn.Module):
    """Twice the first, less the second, and that again."""

    def forward(self, x: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        return x * 2 - one + one


def staged(root: Path) -> tuple[Path, Manifest]:
    """`double` in two stages, with files next to the whole."""
    folder = write_artifact(root, "double", module=Double())
    for number, module in enumerate((Half(), Sum()), start=1):
        script: Callable[..., Any] = torch.jit.script  # untyped in torch
        script(module.eval()).save(str(folder / f"stage{number}.pt"))
    text = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    names = ("stage1.pt", "stage2.pt")
    variant = Variant(
        file=names[0],
        later_stages=names[1:],
        format="torchscript",
        precision="float32",
        made_by="a test",
        torch_version=torch.__version__,
        device_kinds=("cpu",),
        tolerance=TOLERANCES["float32"],
        parity=EXACT,
    )
    files = dict(text.files) | {name: digest_of(folder / name) for name in names}
    return folder, text.model_copy(update={"variants": {"staged": variant}, "files": files})


@pytest.fixture
def made(tmp_path: Path) -> Iterator[PipelineBackend]:
    folder, manifest = staged(tmp_path)
    backend = PipelineBackend(folder, manifest, STAGED, [Device("cpu")] * 2, lambda: None)
    yield backend
    backend.close()


class TestPipelineBackend(BackendSuite):
    shared = False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Iterator[None]:
        self.folder, self.manifest = staged(tmp_path)
        self.backends: list[Backend] = []
        yield
        for backend in self.backends:
            backend.close()

    def make(self) -> Backend:
        devices = [Device("cpu")] * 2
        made = PipelineBackend(self.folder, self.manifest, STAGED, devices, lambda: None)
        self.backends.append(made)
        return made

    def batch(self, size: int) -> Arrays:
        return {"x": np.arange(2 * size, dtype=np.float32).reshape(size, 2)}

    def bad_batch(self) -> Arrays:
        return {"x": np.full((3, 2), 101, np.float32)}


def test_altered_stage_is_refused_and_threads_end(made: PipelineBackend) -> None:
    before = threading.active_count()
    (made.folder / "stage2.pt").write_bytes(b"altered")
    with pytest.raises(ArtifactInvalid, match=r"stage2\.pt"):
        made.load()
    made.close()
    assert threading.active_count() == before


def test_closed_pipeline_has_no_threads(made: PipelineBackend) -> None:
    before = threading.active_count()
    made.load()
    batch = {"x": np.ones((2, 2), np.float32)}
    made.run(batch)
    names = {thread.name for thread in threading.enumerate()}
    assert {"stage-1", "stage-2"} <= names
    made.close()
    made.close()
    for thread in threading.enumerate():
        if thread.name.startswith("stage-"):
            thread.join(10)
    assert threading.active_count() == before
    with pytest.raises(ReplicaError, match="although it is not loaded"):
        made.run(batch)


def stages(*forwards: Callable[..., Any]) -> Pipeline:
    return Pipeline([Stage(forward, CPU) for forward in forwards], lambda: None)


def test_stages_run_in_parallel() -> None:
    """The second one has a part while the first one has the next."""
    both = threading.Barrier(2)

    def first(x: torch.Tensor) -> torch.Tensor:
        if float(x[0]) > 0:  # all but the first part, which no stage has processed before
            both.wait(10)
        return x

    def second(x: torch.Tensor) -> torch.Tensor:
        if float(x[0]) < 3:  # all but the last one
            both.wait(10)
        return x * 2

    pipeline = stages(first, second)
    made = pipeline.run([torch.arange(4.0)], 4)
    assert made.tolist() == [0, 2, 4, 6]
    pipeline.close()


@given(st.integers(1, 40), st.integers(1, 20))
def test_parts_are_joined_in_order(rows: int, parts: int) -> None:
    pipeline = stages(lambda x, y: (x + y, x), lambda s, x: (s * 10, x))
    x = torch.arange(float(rows))
    total, again = pipeline.run([x, torch.ones(rows)], parts)
    assert total.tolist() == [10 * (n + 1) for n in range(rows)]
    assert again.tolist() == x.tolist()
    pipeline.close()


@pytest.mark.parametrize("stage", [0, 1])
def test_a_failed_part_fails_only_its_batch(stage: int) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        if bool((x == 3).any()):
            raise ValueError("three")
        return x

    forwards: list[Callable[..., Any]] = [lambda x: x, lambda x: x]
    forwards[stage] = fails
    pipeline = stages(*forwards)
    for _ in range(3):
        with pytest.raises(ValueError, match="three"):
            pipeline.run([torch.arange(6.0)], 6)
        assert pipeline.run([torch.tensor([7.0, 8.0])], 2).tolist() == [7, 8]
    pipeline.close()


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (ValueError("a shape"), ModelError),
        (torch.OutOfMemoryError("2 GiB"), OutOfMemory),
        (torch.AcceleratorError("sticky"), DeviceLost),
    ],
)
def test_stage_errors_are_classified(
    made: PipelineBackend, monkeypatch: pytest.MonkeyPatch, error: Exception, becomes: type
) -> None:
    def fails(*_: object) -> Any:
        raise error

    monkeypatch.setattr(made, "open_files", lambda name, device: fails)
    made.load()
    with pytest.raises(becomes):
        made.run({"x": np.ones((4, 2), np.float32)})


def test_number_of_parts_depends_on_batch_size() -> None:
    pipeline = stages(lambda x: x, lambda x: x)
    assert [pipeline.parts_of(rows) for rows in (1, 3, 64)] == [1, 3, 4]  # nothing is known yet
    pipeline.set_parts(8, 2)
    pipeline.set_parts(64, 16)
    pipeline.set_parts(1, 1)
    assert [pipeline.parts_of(rows) for rows in (1, 2, 8, 9, 64, 100)] == [1, 2, 2, 9, 16, 16]
    pipeline.set_parts(8, 4)
    assert pipeline.parts_of(8) == 4
    pipeline.close()


@pytest.mark.parametrize("stage", [0, 1])
def test_failed_stage_keeps_no_batch_alive(stage: int) -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    def passes(x: torch.Tensor) -> torch.Tensor:
        made = x + 1
        seen.append(weakref.ref(made))
        return made

    pipeline = stages(*((fails, passes) if stage == 0 else (passes, fails)))
    x = torch.ones(4)
    seen.append(weakref.ref(x))
    gc.disable()
    try:
        with pytest.raises(ValueError, match="no"):
            pipeline.run([x], 2)
        del x
        pipeline.close()
        assert [each() for each in seen] == [None] * len(seen)
    finally:
        gc.enable()


def test_extra_row_in_a_part_is_an_error() -> None:
    def moves(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x[:1]]) if float(x[0]) == 0 else x[:-1]

    pipeline = stages(lambda x: x, moves)
    with pytest.raises(ValueError, match=r"a part of 2 items returned a tensor of shape \[3\]"):
        pipeline.run([torch.arange(4.0)], 2)
    pipeline.close()


def test_warming_yields_before_each_forward(
    made: PipelineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.load()
    turns, most = [0], [0]

    def between() -> None:
        turns[0] = 0

    run = Pipeline.run

    def counting(self: Pipeline, tensors: Any, parts: int) -> Any:
        turns[0] += 1
        most[0] = max(most[0], turns[0])
        return run(self, tensors, parts)

    monkeypatch.setattr(Pipeline, "run", counting)
    monkeypatch.setattr("models.timing.MAX_REPEATS", 1)  # quick ones are repeated to be timed
    made.warm_up([{"x": np.ones((16, 2), np.float32)}], between)
    assert most == [1]
