"""`python -m tests.devices.over_http`: a served model on a device, over HTTP.

Its capacity with each workload that it takes, beside the share of time in which the device computed
and the processor time of a request; then p50 and p99 of Poisson arrivals at shares of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.e2e.server import Server, free_port, wait_ready
from tests.integration.wire import total_of

TEXTS = ("snippets", "minilm")
USUAL = ("image", "npy")
SHARES = (0.3, 0.6, 0.8)
SECONDS, REQUESTS = "torchlane_replica_device_seconds_total", "torchlane_requests_total"
BUSY = "torchlane_device_utilization_ratio"
STAGES = ("copy_in", "compute", "copy_out")


@contextlib.contextmanager
def serving(models: Path, model: str, device: str, log: Path) -> Iterator[Server]:
    """A ready server with one model, in a process that no other one was forked to."""
    port = free_port()
    environment = os.environ | {
        "TORCHLANE_MODEL_DIR": str(models),
        "TORCHLANE_DEFAULT_MODEL": model,
        "TORCHLANE_DEVICES": device,
        "TORCHLANE_CACHE_BYTES": "0",
    }
    command = [sys.executable, "-m", "app", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        server = Server(process, port, log)
        wait_ready(server)
        yield server
    finally:
        process.kill()
        process.wait()


class Figures(NamedTuple):
    """What a server has counted so far: its processor's seconds, and the device's by stage."""

    requests: float
    cpu_s: float
    stage_s: dict[str, float]

    @classmethod
    def of(cls, server: Server) -> Figures:
        """Read them."""
        text = "\n".join(server.scrape())
        times = psutil.Process(server.process.pid).cpu_times()
        stages = {stage: total_of(text, SECONDS, {"stage": stage}) for stage in STAGES}
        return cls(total_of(text, REQUESTS, {}), times.user + times.system, stages)


class Watch:
    """Reads how busy the device is, until it is left."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._values: list[float] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    @property
    def busy(self) -> str:
        """The median share, as a text."""
        return f"{statistics.median(self._values):.0%}" if self._values else "unknown"

    def _run(self) -> None:
        while not self._ends.wait(0.5):
            for line in self._server.scrape():
                if line.startswith(f"{BUSY}{{"):  # if a driver answers
                    self._values.append(float(line.rpartition(" ")[2]))


def load(server: Server, command: str, workload: str, *more: str) -> dict[str, Any]:
    """What the load test reports.

    Raises:
        SystemExit: it has failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, "-m", "loadtests", command, "--url", server.url]
        arguments += ["--workload", workload, "--slo-ms", "200", "--out", folder, *more]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(f"over_http: {workload}: {done.stderr.strip() or done.stdout}")
        (report,) = Path(folder).glob("*.json")
        found: dict[str, Any] = json.loads(report.read_text())
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.devices.over_http", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--model", default="residual")
    parser.add_argument("--models", type=Path, default=Path("artifacts"), help="the repository")
    parser.add_argument("--seconds", type=float, default=25.0, help="of each search")
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(given.models, given.model, given.device, Path(folder) / "log") as server,
    ):
        for workload in ("text",) if given.model in TEXTS else USUAL:
            report(server, given.model, workload, given.seconds)
    return 0


def report(server: Server, model: str, workload: str, seconds: float) -> None:
    """Measure a workload and print."""
    write, began, before = sys.stdout.write, time.perf_counter(), Figures.of(server)
    with Watch(server) as watch:
        found = load(server, "find-capacity", workload, "--budget-s", str(seconds))
    took_s, after = time.perf_counter() - began, Figures.of(server)
    capacity = found["capacity_per_s"] or 0.0
    stages = ", ".join(
        f"{stage} {(after.stage_s[stage] - before.stage_s[stage]) / took_s:.0%}" for stage in STAGES
    )
    cpu_ms = (after.cpu_s - before.cpu_s) / max(after.requests - before.requests, 1) * 1e3
    write(
        f"{model}, {workload}: {capacity:,.0f} requests/s within 200 ms, device busy "
        f"{watch.busy} of {took_s:.0f} s ({stages}), {cpu_ms:.2f} ms of processor time each\n"
    )
    for share in SHARES if capacity else ():
        rate = max(1.0, share * capacity)
        ran = load(server, "run", workload, "--rate", f"{rate:.1f}", "--seconds", "3")["trial"]
        write(
            f"{model}, {workload}, {share:.0%} of it: p50 {ran['p50_ms']:.1f} ms, p99 "
            f"{ran['p99_ms']:.1f} ms\n"
        )


if __name__ == "__main__":
    sys.exit(main())
