"""The caches that hold an entry for every shape."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from app.backends.shape_caches import CACHE_BYTES, CAPACITY, VARIABLES, bound_caches
from models.integrity import read_manifest
from models.manifest import Manifest
from models.tensors import Dimension, TensorSpec
from tests.artifacts import write_artifact

FREE = TensorSpec(
    name="x", dtype="float32", shape=(-1, -1), dimensions=(Dimension(least=1, most=5000),)
)


class Sum(nn.Module):
    """x [n, any] -> y [n, 1]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x.sum(1, keepdim=True)


def free_artifact(root: Path) -> Path:
    output = TensorSpec(name="y", dtype="float32", shape=(-1, 1))
    golden = [{"x": np.ones(3, np.float32)}]
    return write_artifact(root, "free", 1, Sum(), inputs=(FREE,), outputs=(output,), golden=golden)


@pytest.fixture
def free(tmp_path: Path) -> Manifest:
    return read_manifest(free_artifact(tmp_path))


@pytest.fixture
def fixed(tmp_path: Path) -> Manifest:
    return read_manifest(write_artifact(tmp_path, "double"))


def test_only_free_sizes_bound_the_caches(fixed: Manifest, free: Manifest) -> None:
    environ: dict[str, str] = {}
    bound_caches([fixed], environ)
    assert environ == {}
    bound_caches([fixed, free], environ)
    assert environ == dict.fromkeys(VARIABLES, str(CAPACITY))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"),
        ("DNNL_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"),
        ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"),
    ],
)
def test_variables_of_the_user_stay(free: Manifest, name: str, kept: str) -> None:
    environ = {name: "7"}
    bound_caches([free], environ)
    assert environ == {name: "7", kept: str(CAPACITY)}


# Prints by how many bytes 1,200 shapes let the process grow.
GROWTH = """
import ctypes, os, sys
import torch
from app.backends.shape_caches import bound_caches
from models.integrity import read_manifest
from pathlib import Path
bound_caches([read_manifest(Path(sys.argv[1]))], os.environ)
torch.set_num_threads(1)
layer = torch.nn.Linear(64, 64).bfloat16().eval()
def resident():
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
with torch.inference_mode():
    layer(torch.zeros(8, 64, dtype=torch.bfloat16))
    before = resident()
    for rows in range(9, 1209):
        layer(torch.zeros(rows, 64, dtype=torch.bfloat16))
print(resident() - before)
"""


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="needs /proc, and a processor that computes in bf16",
)
def test_memory_stays_bounded_over_many_shapes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", GROWTH, str(free_artifact(tmp_path))]
    unset = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=unset)
    assert int(done.stdout.splitlines()[-1]) < 1.1 * CACHE_BYTES
