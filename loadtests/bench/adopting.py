"""Models that the instruments make for themselves, adopted as anybody would adopt one.

docs/bring-your-own-model.md tells how.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class ModelError(Exception):
    """The model cannot be made; the message holds what was said about it."""


def adopt(file: Path, name: str, spec: str, models: Path, more: Sequence[str] = ()) -> Path:
    """Adopt a TorchScript file as version 1, timed with one thread; the artifact's folder.

    Args:
        file: TorchScript.
        name: of the model.
        spec: of its input, such as `float32[-1,2]`.
        models: the repository.
        more: options of `python -m export adopt`.

    Raises:
        ModelError: if that fails.
    """
    command = [sys.executable, "-m", "export", "adopt", str(file), "--name", name, "--input", spec]
    run([*command, "--threads", "1", "--version", "1", "--out", str(models), *more])
    return models / name / "1"


def run(command: Sequence[str]) -> None:
    """Run one step.

    Raises:
        ModelError: if it fails.
    """
    done = subprocess.run(  # nosec B603 # this very program
        command, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ModelError(f"`{' '.join(command)}` failed: {(done.stdout + done.stderr)[-1000:]}")
