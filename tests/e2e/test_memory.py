"""The memory that a large model takes in a server and at its export."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from models.manifest import LARGE_BYTES
from tests.e2e.server import resident_bytes, running

WIDTH, LAYERS = 2048, 34
WEIGHTS_BYTES = 4 * WIDTH * WIDTH * LAYERS


class Chain(nn.Module):
    """[n, WIDTH] -> the same; many weights, and little to compute."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def adopted(folder: Path, layers: int) -> int:
    """Adopt a chain into `folder`; return the most bytes that any process so far has held."""
    folder.mkdir()
    batch = torch.export.Dim("batch", min=1, max=65_536)
    example = (torch.zeros(3, WIDTH),)
    with torch.no_grad():
        chain = Chain(layers).eval()
        program = torch.export.export(chain, example, dynamic_shapes=({0: batch},))
    torch.export.save(program, folder / "chain.pt2")
    del program, chain
    adopt = f"-m export adopt {folder}/chain.pt2 --name chain --out {folder}/artifacts"
    subprocess.run([sys.executable, *adopt.split()], check=True, capture_output=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


@pytest.mark.soak  # minutes, and 3 GB
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_model_is_held_once_by_a_server_and_three_times_by_export(
    repository: Path, tmp_path: Path
) -> None:
    assert WEIGHTS_BYTES > LARGE_BYTES
    torch.manual_seed(0)
    other = adopted(tmp_path / "small", layers=1)
    peak = adopted(tmp_path / "large", LAYERS)
    with running(repository, tmp_path / "empty.log") as server:
        empty = resident_bytes(server.process.pid)
    with running(tmp_path / "large" / "artifacts", tmp_path / "log") as server:
        held = resident_bytes(server.process.pid) - empty
    assert held / WEIGHTS_BYTES < 1.35
    assert (peak - other) / WEIGHTS_BYTES < 3
