"""`python -m tests.devices.over_http`: a served model on a device, over HTTP.

Its capacity with each workload that it takes, beside the share of time in which the device computed
and the processor time of a request; then p50 and p99 of Poisson arrivals at shares of it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.integration.wire import total_of

TEXTS = ("snippets", "minilm")
USUAL = ("image", "npy")
SHARES = (0.3, 0.6, 0.8)
READY_S = 120.0
BUSY = "torchlane_device_utilization_ratio"
STAGES = ("copy_in", "compute", "copy_out")


class Server:
    """A server in a process of its own, with one model.

    Args:
        models: the repository.
        model: its name.
        device: as in TORCHLANE_DEVICES.
    """

    def __init__(self, models: Path, model: str, device: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        environment = os.environ | {
            "TORCHLANE_MODEL_DIR": str(models),
            "TORCHLANE_DEFAULT_MODEL": model,
            "TORCHLANE_DEVICES": device,
            "TORCHLANE_CACHE_BYTES": "0",
        }
        command = [sys.executable, "-m", "app", "--port", str(port)]
        self._process = subprocess.Popen(command, env=environment)

    def wait(self) -> None:
        """Return when it is ready.

        Raises:
            SystemExit: it has ended, or is late.
        """
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health/ready", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        raise SystemExit("over_http: the server is not ready")

    def metric(self, name: str, **labels: str) -> float | None:
        """The sum of a metric over all series with these labels; None: it does not exist."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return total_of(text, name, labels) if f"\n{name}" in text else None

    def stages(self) -> dict[str, float]:
        """The device's seconds by stage."""
        name = "torchlane_replica_device_seconds_total"
        return {stage: self.metric(name, stage=stage) or 0.0 for stage in STAGES}

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time that it has taken."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


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
            value = self._server.metric(BUSY)
            if value is not None:
                self._values.append(value)


def load(server: Server, command: str, workload: str, *more: str) -> dict[str, Any]:
    """What the load test reports.

    Raises:
        CalledProcessError: it has failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, "-m", "loadtests", command, "--url", server.url]
        arguments += ["--workload", workload, "--slo-ms", "200", "--out", folder, *more]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        (report,) = Path(folder).glob("*.json")
        if done.returncode not in (0, 1):
            raise SystemExit(f"over_http: {workload}: {done.stderr.strip() or done.stdout}")
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
    server = Server(given.models, given.model, given.device)
    write = sys.stdout.write
    try:
        server.wait()
        for workload in ("text",) if given.model in TEXTS else USUAL:
            cpu_s, began = server.cpu_s, time.perf_counter()
            before, earlier = server.metric("torchlane_requests_total") or 0.0, server.stages()
            with Watch(server) as watch:
                found = load(server, "find-capacity", workload, "--budget-s", str(given.seconds))
            took_s = time.perf_counter() - began
            count = (server.metric("torchlane_requests_total") or 0.0) - before
            capacity = found["capacity_per_s"] or 0.0
            after = server.stages()
            stages = ", ".join(f"{s} {(after[s] - earlier[s]) / took_s:.0%}" for s in STAGES)
            write(
                f"{given.model}, {workload}: {capacity:,.0f} requests/s within 200 ms, device "
                f"busy {watch.busy} of {took_s:.0f} s ({stages}), "
                f"{(server.cpu_s - cpu_s) / max(count, 1) * 1e3:.2f} ms of processor time each\n"
            )
            for share in SHARES if capacity else ():
                rate = max(1.0, share * capacity)
                trial = load(server, "run", workload, "--rate", f"{rate:.1f}", "--seconds", "3")[
                    "trial"
                ]
                write(
                    f"{given.model}, {workload}, {share:.0%} of it: p50 {trial['p50_ms']:.1f} ms,"
                    f" p99 {trial['p99_ms']:.1f} ms\n"
                )
    finally:
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
