"""What a model answers, found out without a server."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tests.ray.cluster import ROOT


def answers_of(models: Path, model: str, count: int) -> tuple[list[Any], list[tuple[str, float]]]:
    """Inputs of digits as JSON has them, and label and score of each by bulk scoring."""
    items = np.random.default_rng(0).random((count, 1, 32, 32)).astype(np.float32).round(3)
    with tempfile.TemporaryDirectory() as made:
        np.save(f"{made}/items.npy", items)
        command = [sys.executable, "-m", "app.bulk", model, f"{made}/items.npy"]
        command += ["--model-dir", str(models), "--out", f"{made}/out"]
        subprocess.run(command, check=True, cwd=ROOT)
        table = pq.read_table(f"{made}/out/part-00000.parquet")
    pairs = zip(table["label"].to_pylist(), table["score"].to_pylist(), strict=True)
    return items.tolist(), [(str(label), float(score)) for label, score in pairs]
