"""A server of several processes that is set by flags."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.artifacts import write_artifact
from tests.e2e.server import PLAIN, free_port


def test_flags_override_the_environment_in_every_process(tmp_path: Path) -> None:
    write_artifact(tmp_path / "models", "double")
    port = free_port()
    flags = ["--port", str(port), "--model-dir", str(tmp_path / "models"), "--workers", "2"]
    flags += ["--devices=cpu", "--queue-limit-items=7", "--log-format", "json"]
    environment = {**os.environ, "TORCHLANE_PORT": "1", "TORCHLANE_QUEUE_LIMIT_ITEMS": "9"}
    command = [sys.executable, "-m", "app", *flags]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while not answers(f"{url}/health/ready") and time.monotonic() < deadline:
            time.sleep(0.05)
        limit = 'torchlane_queue_limit_items{model="double",version="1"} 14.0'
        while limit not in httpx.get(f"{url}/metrics", verify=PLAIN).text:  # one may be too busy
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        process.terminate()
        assert process.wait(30) == 0


def answers(url: str) -> bool:
    try:
        return httpx.get(url, verify=PLAIN).status_code == 200
    except httpx.TransportError:
        return False
