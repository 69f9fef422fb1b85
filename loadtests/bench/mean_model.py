"""A model without weights whose items are large: the mean of each of three channels.

`python -m loadtests.bench.mean_model FILE` writes it as TorchScript, in a process of its own; the
benchmark adopts the file as anybody would (docs/bring-your-own-model.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtests.bench.adopting import adopt, run
from loadtests.bench.environments import ENVIRONMENTS
from models.manifest import MANIFEST_FILE

SHAPE = (3, 224, 224)
NAME = "mean"
MODELS = ENVIRONMENTS / "models"


def artifact() -> Path:
    """The folder of the adopted model; made where it is not there yet.

    Raises:
        ModelError: if a step fails.
    """
    folder = MODELS / NAME / "1"
    if (folder / MANIFEST_FILE).exists():
        return folder
    MODELS.mkdir(parents=True, exist_ok=True)
    file = MODELS / f"{NAME}.pt"
    run([sys.executable, "-W", "ignore", "-m", "loadtests.bench.mean_model", str(file)])
    return adopt(file, NAME, f"float32[{','.join(map(str, (-1, *SHAPE)))}]", MODELS)


def write(file: Path) -> None:
    """Write the TorchScript file."""
    import torch  # noqa: PLC0415  # in the process that was started for it only

    class Mean(torch.nn.Module):
        """float32 [n, 3, h, w] -> [n, 3]."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(dim=(2, 3))

    trace: Callable[..., Any] = torch.jit.trace  # untyped in torch
    trace(Mean().eval(), torch.zeros(2, *SHAPE)).save(str(file))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
