"""A model whose cost is linear in the batch and whose right answers are known: twice the input.

`python -m loadtests.overload.linear_model FILE MILLISECONDS` writes it as TorchScript, in a process
of its own, with as many matrix products per item as take so long on this core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtests.bench import adopting

NAME = "linear"
WIDTH = 2  # numbers of an item
SIDE = 256  # of the matrices
CALIBRATION = 200  # products
MAX_BATCH = 4  # proved and timed at adoption: larger ones cost as much per item


def artifact(models: Path, item_ms: float, max_batch: int = MAX_BATCH) -> Path:
    """Make the model and adopt it; the folder of its artifact.

    Args:
        models: the repository to make it in.
        item_ms: what an item shall cost on the core that this runs on.
        max_batch: the largest batch that is proved and timed.

    Raises:
        ModelError: if a step fails.
    """
    file = models / f"{NAME}.pt"
    write_it = "loadtests.overload.linear_model"
    adopting.run([sys.executable, "-W", "ignore", "-m", write_it, str(file), str(item_ms)])
    more = ("--max-batch-size", str(max_batch))
    return adopting.adopt(file, NAME, f"float32[-1,{WIDTH}]", models, more)


def write(file: Path, item_ms: float) -> None:
    """Write the TorchScript file."""
    import torch  # noqa: PLC0415  # in the process that was started for it only

    class Linear(torch.nn.Module):
        """float32 [n, k] -> twice that; each item is computed by itself, and needs its input."""

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

    torch.set_num_threads(1)
    script: Callable[..., Any] = torch.jit.script  # untyped in torch
    module, one = script(Linear(SIDE, CALIBRATION).eval()), torch.ones(1, WIDTH)
    least_s = min(_seconds(lambda: module(one)) for _ in range(5))
    products = max(1, round(item_ms / 1000 / (least_s / CALIBRATION)))
    script(Linear(SIDE, products).eval()).save(str(file))


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    write(Path(sys.argv[1]), float(sys.argv[2]))
