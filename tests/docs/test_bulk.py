"""The commands of docs/bulk.md, run as they stand."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np

from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.docs.blocks import ROOT, blocks
from tests.e2e.forking import write_command

SIZE = 1024
X = TensorSpec(name="x", dtype="float32", shape=(-1, SIZE))
Y = TensorSpec(name="y", dtype="float32", shape=(-1, SIZE))


def test_a_table_is_scored(tmp_path: Path) -> None:
    golden = [{"x": np.ones(SIZE, np.float32)}]
    write_artifact(tmp_path / "artifacts", "digits", inputs=(X,), outputs=(Y,), golden=golden)
    (script,) = [text for language, text in blocks("docs/bulk.md") if language == "sh"]
    done = subprocess.run(
        ["bash", "-ec", script.replace(".venv/bin/", "")],
        cwd=tmp_path,
        env=os.environ | write_command(tmp_path) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[{'id': 0, 'row': 0, 'y': [" in done.stdout
    assert "2,000 rows in" in done.stderr
