"""TorchScript files: their answers, and which of them replicas may share."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models.runtimes.base import VariantFile
from models.runtimes.forms import named_outputs
from models.runtimes.torchscript import hush_quantized_tensors, keeps_state, load_torchscript
from models.tensors import Array
from tests.artifacts import small_answer, small_batch, small_variant
from tests.unit.models.manifests import spec

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[4]


def answer(form: torch.jit.ScriptModule, size: int) -> Array:
    """Its answer to a batch of `Small`'s inputs."""
    batch = small_batch(size)
    with torch.inference_mode():
        made = form(*(torch.from_numpy(batch[name]) for name in ("picture", "shift")))
    return named_outputs(made, [spec("y", shape=(-1, 3))])["y"]


@pytest.mark.parametrize("optimized", [False, True])
def test_answers_match_eager(optimized: bool) -> None:
    form = load_torchscript(VariantFile.of(small_variant("script").data), CPU, optimized=optimized)
    for size in (1, 5, 5, 5, 64):  # it specialises on the second and third call
        wanted = small_answer(small_batch(size))["y"]
        np.testing.assert_allclose(answer(form, size), wanted, rtol=1e-4, atol=1e-5)


def test_optimizing_one_copy_leaves_another_unchanged() -> None:
    file = VariantFile.of(small_variant("script").data)
    plain = load_torchscript(file, CPU)
    before = str(plain.graph)
    optimized = load_torchscript(file, CPU, optimized=True)
    assert str(plain.graph) == before
    assert str(optimized.graph) != before


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("variant", ["script", "bf16"])
def test_threads_share_a_module(variant: str, optimized: bool) -> None:
    """Its first calls too, in which it specialises."""
    form = load_torchscript(VariantFile.of(small_variant(variant).data), CPU, optimized=optimized)
    atol = 1e-5 if variant == "script" else 0.1
    together, wrong = threading.Barrier(3), list[int]()

    def work(size: int) -> None:
        wanted = small_answer(small_batch(size))["y"]
        together.wait()
        for _ in range(100):
            if not np.allclose(answer(form, size), wanted, rtol=1e-4, atol=atol):
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 3, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Keeps(nn.Module):
    """Has an attribute that its forward may change."""

    def __init__(self, kept: Any) -> None:
        super().__init__()
        self.kept = kept


class WritesToAttribute(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.add_(1)
        return x + self.kept  # type: ignore[no-any-return]


class WritesToView(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = self.kept[0].view(-1)
        row += 1
        return x + row  # type: ignore[no-any-return]


class WritesInABranch(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 3:
            for _ in range(2):
                self.kept += 1
        return x + self.kept  # type: ignore[no-any-return]


class KeepsLast(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, self.kept = self.kept, x.sum(0)
        return x + before  # type: ignore[no-any-return]


class Counts(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept += 1
        return x * self.kept  # type: ignore[no-any-return]


class WritesInList(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept[0].add_(1)
        return x + self.kept[0]  # type: ignore[no-any-return]


class KeepsInDict(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept["last"] = x
        return x * len(self.kept)


class KeepsSizes(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.clear()
        self.kept.append(x.shape[0])
        return x * self.kept[0]  # type: ignore[no-any-return]


class KeepsNestedSizes(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept["all"][0].append(x.shape[0])
        return x * len(self.kept["all"][0])


class CountsInFork(Keeps):
    def count(self, x: torch.Tensor) -> torch.Tensor:
        self.kept += 1
        return x * self.kept  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.jit.wait(torch.jit.fork(self.count, x))  # type: ignore[no-untyped-call]
        return made


class UpdatesStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.variance = torch.zeros(2), torch.ones(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.native_batch_norm(x, None, None, self.mean, self.variance, True, 0.1, 1e-5)
        return made[0]


class WritesToItsOwn(nn.Module):
    """Changes only tensors of the call, as most networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(2, 8, 3), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout()
        )
        self.bias = nn.Parameter(torch.ones(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(x)
        made[:, 0] = 0
        made += self.bias
        return made


class Recurrent(nn.Module):
    """Its weights are in a list, and it changes tensors of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(4, 4, 1), nn.InstanceNorm1d(4), nn.ReLU(inplace=True))
        self.layer = nn.LSTM(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(self.first(x))[0]
        return made.clamp_(0, 1)


def reloaded(module: nn.Module) -> torch.jit.ScriptModule:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module.eval()), buffer)
    return load_torchscript(VariantFile.of(buffer.getvalue()), CPU)


@pytest.mark.parametrize(
    "module",
    [
        lambda: WritesToAttribute(torch.zeros(1)),
        lambda: WritesToView(torch.zeros(4, 2)),
        lambda: WritesInABranch(torch.zeros(1)),
        lambda: KeepsLast(torch.zeros(3)),
        lambda: Counts(0),
        lambda: WritesInList([torch.zeros(2)]),
        lambda: KeepsInDict({"first": torch.zeros(1)}),
        lambda: KeepsSizes([1]),
        lambda: KeepsNestedSizes({"all": ([1], 2)}),
        lambda: CountsInFork(0),
        UpdatesStatistics,
    ],
)
def test_a_module_with_state_is_not_shared(module: Callable[[], nn.Module]) -> None:
    first, second = reloaded(module()), reloaded(module())
    assert keeps_state(first)
    assert first is not second


@pytest.mark.parametrize("module", [WritesToItsOwn, Recurrent])
def test_a_module_without_state_is_shared(module: type[nn.Module]) -> None:
    torch.manual_seed(0)
    first = reloaded(module())
    torch.manual_seed(0)
    assert reloaded(module()) is first


class Quantized(nn.Module):
    """As in int8 variants of older exports, and in files that were quantized elsewhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x, 0.5, 0, torch.qint8).dequantize()


def test_deprecation_of_quantized_tensors_is_silenced(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(Quantized().eval()), tmp_path / "int8.pt")
    # Torch tells once a process, so it takes a process of its own.
    program = (
        "import sys, torch; from models.system import quiet;"
        "from models.runtimes.torchscript import read_torchscript;"
        "[quiet.ignore_warnings(message=each) for each in quiet.DEPRECATIONS];"
        "form = read_torchscript(sys.argv[1], torch.device('cpu'));"
        "print(form(torch.ones(2, 3)).shape)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "int8.pt")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "torch.Size([2, 3])\n"
    assert "deprecated" not in done.stderr
    hush_quantized_tensors()  # and raises no warning here, where one would be an error
