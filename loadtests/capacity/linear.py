"""A model whose items cost the same in any batch, which is adopted for a measurement.

float32 [n, 2] -> twice that, after products of matrices: as many as take the requested time.
`python -m loadtests.capacity.linear FILE MILLISECONDS` writes it as TorchScript.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from loadtests.bench.artifacts import run

NAME, WIDTH = "linear", 2
SIDE = 256  # of the matrices
CALIBRATION = 200  # products
MAX_BATCH = 4  # verified and timed at adoption: larger ones cost the same per item


def linear_artifact(models: Path, item_ms: float) -> Path:
    """Build the model and adopt it as version 1; return the folder of its artifact.

    Raises:
        ModelError: if a step fails.
    """
    file = models / f"{NAME}.pt"
    run("loadtests.capacity.linear", str(file), str(item_ms))
    sizes = ("--input", f"float32[-1,{WIDTH}]", "--max-batch-size", str(MAX_BATCH))
    adopt = ("adopt", str(file), "--name", NAME, "--version", "1")
    run("export.__main__", *adopt, *sizes, "--threads", "1", "--out", str(models))
    return models / NAME / "1"


def write(file: Path, item_ms: float) -> None:
    """Write a TorchScript file, in a process started for this."""
    import torch  # noqa: PLC0415  # only in this process

    class Linear(torch.nn.Module):
        """Computes each item separately, with products that need its input."""

        def __init__(self, side: int, products: int) -> None:
            super().__init__()
            self.side = side
            self.products = products

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = torch.zeros_like(x)
            for row in range(x.size(0)):
                product = torch.eye(self.side) + x[row, 0] * 0.0
                for _ in range(self.products):
                    product = product @ product
                out[row] = x[row] * 2.0 * product[0, 0]
            return out

    def build_script(products: int) -> Any:
        return torch.jit.script(Linear(SIDE, products).eval())

    torch.set_num_threads(1)
    module, one, times_s = build_script(CALIBRATION), torch.ones(1, WIDTH), []
    for _ in range(5):
        began = time.perf_counter()
        module(one)
        times_s.append(time.perf_counter() - began)
    products = max(1, round(item_ms / 1000 / (min(times_s) / CALIBRATION)))
    build_script(products).save(str(file))


if __name__ == "__main__":
    write(Path(sys.argv[1]), float(sys.argv[2]))
