"""A profile of a real process that is told to stop."""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from app.access.entries import make_key
from tests.artifacts import write_artifact
from tests.e2e.server import running

SECRET, LINE = make_key("ops", ["admin", "predict"])


def test_a_stop_ends_the_profile_with_a_trace(tmp_path: Path) -> None:
    write_artifact(tmp_path / "models", "double")
    key = {"authorization": f"Bearer {SECRET}"}
    with (
        running(tmp_path / "models", tmp_path / "log", api_keys=LINE) as server,
        httpx.Client(base_url=server.url, headers=key, timeout=30) as client,
        ThreadPoolExecutor() as threads,
    ):
        profiling = threads.submit(client.post, "/admin/profile?seconds=60")
        deadline = time.monotonic() + 20
        while "profiling" not in server.log:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert client.post("/predict", json={"input": [1, 2]}).status_code == 200
        server.signal(signal.SIGTERM)
        answer = profiling.result(20)
        assert server.exit_code() == 0
        log = server.log
    assert answer.status_code == 200
    trace = json.loads(answer.content)
    assert trace["otherData"]["ended"] == "the server is shutting down"
    assert "batch of 1, double/1" in [event["name"] for event in trace["traceEvents"]]
    assert "STAGE:" not in log
    assert "profiler_start" not in log
