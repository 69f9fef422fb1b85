"""`python -m tests.devices.bulk`: bulk scoring against bare forwards and a loop over HTTP.

Bare forwards run in as many threads as bulk scoring has replicas, in the plan's best batch. They
and bulk scoring take turns. On a busy machine compare processor time, not rows per second.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.bulk.model import BulkModel, Choices, open_artifact
from app.registry.model_settings import ModelSettings
from app.registry.repository import HandlerArtifact, Repository
from app.serving.version_policy import VersionPolicy
from models.processor import cpu_name
from tests.e2e.server import running

GROUP = 1 << 16
PROBE = 4096  # rows of a run that mostly starts: what a longer one takes in addition is counted
POSTED = 64  # items of a request
FILES = {
    "lists that may be null": "lists.parquet",
    "lists": "no-nulls.parquet",
    "bytes": "bytes.parquet",
    ".npy": "array.npy",
}


class Took(NamedTuple):
    """Seconds on the wall, and of processor time, for some rows."""

    wall_s: float
    cpu_s: float
    rows: int

    def told(self) -> str:
        """In a line."""
        return (
            f"{self.rows / self.wall_s:,.0f} rows/s, {self.cpu_s / self.rows * 1e6:.1f} us of CPU"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.devices.bulk", description=__doc__)
    parser.add_argument("--artifacts", type=Path, default=Path("artifacts"))
    parser.add_argument("--model", default="digits", help="of one input of numbers")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", default="script")
    given = parser.parse_args(arguments)
    write = sys.stdout.write
    write(f"{cpu_name()}, {given.rows:,} rows of {given.model}\n")
    model = _model(given)
    with tempfile.TemporaryDirectory() as folder:
        files = {kind: Path(folder, name) for kind, name in FILES.items()}
        for kind, file in files.items():
            _write_numbers(file, kind, model, given.rows)
        for number in range(given.rounds):
            bare = _bare(model)
            write(f"round {number + 1}: bare forwards of {model.batch}: {bare.told()}\n")
            for kind, file in files.items():
                took = _bulk(given, file, Path(folder, "out"), number)
                share = bare.cpu_s / bare.rows / (took.cpu_s / took.rows)
                write(f"  bulk, {kind}: {took.told()}; {share:.2f} of the bare forward\n")
        with running(given.artifacts, Path(folder, "log"), workers="1") as server:
            posted = _posted(server.url, files["lists"], server.process.pid)
        write(f"a loop of httpx, {POSTED} items of JSON a request: {posted.told()}\n")
    return 0


def _model(given: argparse.Namespace) -> BulkModel:
    repository = Repository(given.artifacts)
    artifact = open_artifact(repository, VersionPolicy.parse("latest"), given.model, None)
    if isinstance(artifact, HandlerArtifact):
        raise SystemExit(f"{artifact.id} is a handler, which has no network to measure")
    return BulkModel(artifact, Choices("auto", None, None, ModelSettings(variant=given.variant)))


def _write_numbers(file: Path, kind: str, model: BulkModel, count: int) -> None:
    """Rows that all differ, of 256 levels as pictures have them."""
    (spec,) = model.manifest.inputs
    size, rng = int(np.prod(spec.item_shape)), np.random.default_rng(0)
    levels = (np.arange(256) / 255).astype(np.float32)
    if file.suffix == ".npy":
        shape = (count, *spec.item_shape)
        whole = np.lib.format.open_memmap(file, "w+", np.float32, shape).reshape(count, size)
        for start in range(0, count, GROUP):
            part = whole[start : start + GROUP]
            part[:] = levels[rng.integers(0, 256, part.shape, dtype=np.uint8)]
        return
    nullable = kind == "lists that may be null"
    lists = pa.list_(pa.field("element", pa.float32(), nullable=nullable))
    field = pa.field("input", pa.binary(4 * size) if kind == "bytes" else lists, nullable=nullable)
    plain = {"compression": "none", "use_dictionary": False} if kind == "bytes" else {}
    with pq.ParquetWriter(file, pa.schema([field]), **plain) as writer:
        for start in range(0, count, GROUP):
            rows = min(GROUP, count - start)
            numbers = levels[rng.integers(0, 256, (rows, size), dtype=np.uint8)]
            if kind == "bytes":
                buffer = pa.py_buffer(numbers.tobytes())
                column = pa.FixedSizeBinaryArray.from_buffers(field.type, rows, [None, buffer])
            else:
                offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * size)
                flat = pa.array(numbers.reshape(-1))
                column = pa.ListArray.from_arrays(offsets, flat, type=lists)
            writer.write_table(pa.Table.from_arrays([column], schema=pa.schema([field])))


def _bare(model: BulkModel) -> Took:
    (spec,) = model.manifest.inputs
    shape = (PROBE, *spec.item_shape)
    numbers = np.random.default_rng(0).random(shape, dtype=np.float32)
    rounds, replicas = 4, len(model.devices)
    ready, cpu_s = threading.Barrier(replicas + 1), list[float]()

    def run(replica: int) -> None:
        model.begin(replica)
        backend = model.backend(replica)
        ready.wait()
        began = time.thread_time()
        for _ in range(rounds):
            for start in range(0, PROBE, model.batch):
                backend.run({spec.name: numbers[start : start + model.batch]})
        cpu_s.append(time.thread_time() - began)
        backend.close()

    threads = [threading.Thread(target=run, args=(replica,)) for replica in range(replicas)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return Took(time.perf_counter() - began, sum(cpu_s), rounds * PROBE * replicas)


def _bulk(given: argparse.Namespace, file: Path, out: Path, number: int) -> Took:
    """A whole run, less one of few rows, which is what the start takes."""

    def run(name: str, *more: str) -> Took:
        into = out.with_name(f"{file.stem}-{number}-{name}")
        model_dir = ("--model-dir", str(given.artifacts), "--variant", given.variant)
        command = [sys.executable, "-m", "app.bulk", given.model, str(file), "--out", str(into)]
        return _timed(lambda: _checked([*command, *model_dir, *more]), given.rows)

    start, whole = run("start", "--limit", str(PROBE)), run("whole")
    return Took(whole.wall_s - start.wall_s, whole.cpu_s - start.cpu_s, given.rows - PROBE)


def _posted(url: str, file: Path, server: int) -> Took:
    """Rows as a client would send them; processor time of both sides."""
    table = pq.ParquetFile(file).read_row_group(0).slice(0, PROBE)
    before = _cpu_of(server)

    def loop() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            for start in range(0, PROBE, POSTED):
                items = table.column("input").slice(start, POSTED).to_pylist()
                client.post("/batch-predict", json={"inputs": items}).raise_for_status()

    took = _timed(loop, PROBE, resource.RUSAGE_SELF)
    return took._replace(cpu_s=took.cpu_s + _cpu_of(server) - before)


def _cpu_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _timed(work: Callable[[], None], rows: int, who: int = resource.RUSAGE_CHILDREN) -> Took:
    before, began = resource.getrusage(who), time.perf_counter()
    work()
    after = resource.getrusage(who)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Took(time.perf_counter() - began, cpu_s, rows)


def _checked(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


if __name__ == "__main__":
    sys.exit(main())
