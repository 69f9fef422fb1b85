"""Scores the same rows here, on a cluster, and on one that loses a node; runs where Ray is.

python -m tests.ray.scoring MODELS MODEL ROWS FOLDER one|two: nodes
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.ray.cluster import ALONE, two_nodes

PER_SHARD = 4096
KILL_AFTER = 2  # shards
LIMIT_S = 300.0


def main(arguments: Sequence[str]) -> None:
    models, model, rows, out = Path(arguments[0]), arguments[1], int(arguments[2]), arguments[3]
    folder = Path(out)
    given = folder / "rows.parquet"
    _write(given, models / model / "1", rows)
    command = [sys.executable, "-m", "app.bulk", model, str(given), "--model-dir", str(models)]
    command += ["--rows-per-shard", str(PER_SHARD), "--top-k", "2"]
    here = folder / "here"
    told: dict[str, Any] = {"rows": rows, "here_s": _finish(_start(command, here))}
    if arguments[4] == "one":
        local = [*command, "--ray", "local"]
        told["one_node_s"] = _finish(_start(local, folder / "there", here))
    else:
        _on_two_nodes(command, here, told)
    told["digests"] = {each.name: _digest(each) for each in folder.iterdir() if each.is_dir()}
    told["shards"] = len(list(here.glob("part-*")))
    told["errors"] = pq.read_table(here / "errors.parquet").num_rows
    sys.stdout.write(json.dumps(told) + "\n")


def _on_two_nodes(command: list[str], here: Path, told: dict[str, Any]) -> None:
    """A run on a cluster, and one in which a node is killed."""
    there, less = (here.with_name(name) for name in ("there", "less"))
    with two_nodes() as (cluster, second):
        command = [*command, "--ray", cluster.address]
        told["two_nodes_s"] = _finish(_start(command, there, here))
        _finish(_ended(command, there))  # nothing but the manifest is left to do
        running = _start(command, less, here)
        try:
            while (done := _shards(less)) < KILL_AFTER:
                assert running.poll() is None, "it ended before the node could be killed"
                time.sleep(0.05)
            cluster.remove_node(second, allow_graceful=False)
            told["shards_at_the_kill"] = done
            told["a_node_killed_s"] = _finish(running)
        finally:
            running.kill()


def _write(path: Path, artifact: Path, rows: int) -> None:
    """Numbers; some rows equal another one, some are bad."""
    (spec,) = json.loads((artifact / "manifest.json").read_bytes())["inputs"]
    width = int(np.prod(spec["shape"][1:]))
    values = np.random.default_rng(0).random((rows, width), np.float32)
    values[::7] = values[0]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width)
    bad = np.arange(rows) % 1009 == 5
    column = pa.ListArray.from_arrays(
        pa.array(np.arange(rows + 1, dtype=np.int32) * width), lists.values, mask=pa.array(bad)
    )
    ids = pa.array([f"row {number}" for number in range(rows)])
    pq.write_table(pa.table({"id": ids, "input": column}), path, row_group_size=rows // 3)


def _start(command: list[str], out: Path, like: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a run, with the steps of another one: which form is fastest is measured for each."""
    out.mkdir()
    if like is not None:
        manifest = json.loads((like / "manifest.json").read_bytes())
        changed = {"status": "running", "shards": []}
        (out / "manifest.json").write_text(json.dumps(manifest | changed))
    resumed = ["--resume"] if like is not None else []
    return subprocess.Popen([*command, "--out", str(out), *resumed], env=os.environ | ALONE)


def _ended(command: list[str], out: Path) -> subprocess.Popen[bytes]:
    """Resume a run that was killed after its last shard."""
    manifest = json.loads((out / "manifest.json").read_bytes())
    lines = (json.dumps(shard) + "\n" for shard in manifest["shards"])
    (out / "progress.jsonl").write_text("".join(lines))
    changed = {"status": "running", "shards": []}
    (out / "manifest.json").write_text(json.dumps(manifest | changed))
    return subprocess.Popen([*command, "--out", str(out), "--resume"], env=os.environ | ALONE)


def _finish(process: subprocess.Popen[bytes]) -> float:
    began = time.monotonic()
    try:
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
    return round(time.monotonic() - began, 1)


def _shards(out: Path) -> int:
    journal = out / "progress.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def _digest(out: Path) -> str:
    files = sorted([*out.glob("part-*"), out / "errors.parquet"])
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
