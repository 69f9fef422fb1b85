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
    """[n, WIDTH] -> the same; more weights than LARGE_BYTES, and little to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.soak  # minutes, and 3 GB
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_server_holds_one_copy_of_a_large_model(repository: Path, tmp_path: Path) -> None:
    assert WEIGHTS_BYTES > LARGE_BYTES
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=65_536)
    example = (torch.zeros(3, WIDTH),)
    with torch.no_grad():
        program = torch.export.export(Chain().eval(), example, dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "chain.pt2")
    del program
    adopt = f"-m export adopt {tmp_path}/chain.pt2 --name chain --out {tmp_path}/artifacts"
    subprocess.run([sys.executable, *adopt.split()], check=True, capture_output=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    with running(repository, tmp_path / "empty.log") as server:
        empty = resident_bytes(server.process.pid)
    with running(tmp_path / "artifacts", tmp_path / "log") as server:
        held = resident_bytes(server.process.pid) - empty
    assert held < 1.35 * WEIGHTS_BYTES
    assert peak < 5 * WEIGHTS_BYTES + (512 << 20)  # and what torch and its compiler take
