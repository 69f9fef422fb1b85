"""Real processes whose models are in a store: kills, several workers, one cache for all."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from app.sources.download import PART
from tests.e2e.server import PLAIN, Server, free_port, running, start_process, wait_for_readiness
from tests.integration.test_mirror import large_version
from tests.s3 import Bucket, Handler, Proxy, Seen, only

LARGE = 6 * PART
PARTIALS = "mirrors/*/partial/*"


@pytest.fixture
def settings(tmp_path: Path, s3: Proxy) -> dict[str, str]:
    return {"source_cache": str(tmp_path / "cache"), "source_poll_s": "0.2", "reload_s": "0.2"}


def weights(s3: Proxy) -> int:
    return sum(each.nbytes for each in s3.got("weights.bin"))


def wait_until(what: object, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not what():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_download_goes_on_after_a_kill(
    tmp_path: Path, log: Path, s3: Proxy, bucket: Bucket, settings: dict[str, str]
) -> None:
    bucket.upload(large_version(tmp_path / "made", LARGE))

    def holds(handler: Handler, seen: Seen) -> bool:
        if f"bytes={3 * PART}-" in (handler.headers["Range"] or ""):
            time.sleep(60)
        return False

    s3.fault = holds
    port = str(free_port())
    partials = (tmp_path / "cache").glob
    with start_process(log, **settings, model_dir=bucket.url, port=port) as process:
        wait_until(lambda: any(f.stat().st_size >= 2 * PART for f in partials(PARTIALS)))
        health = wait_for_readiness(Server(process, int(port), log), 503)
        assert f"models are being fetched from {bucket.url}" in health.text
        process.kill()
    s3.fault = None
    s3.seen.clear()
    with running(bucket.url, log, **settings) as server:
        assert predicted(server) == 200
        assert weights(s3) <= LARGE - 2 * PART
        server.signal()
        assert server.exit_code() == 0


def predicted(server: Server) -> int:
    answer = httpx.post(f"{server.url}/predict", json={"input": [1, 2]}, verify=PLAIN)
    return answer.status_code


def held(*_: object) -> bool:
    """Sends nothing for longer than any test takes."""
    time.sleep(300)
    return False


def test_a_server_stops_in_the_middle_of_a_download(
    tmp_path: Path, log: Path, s3: Proxy, bucket: Bucket, settings: dict[str, str]
) -> None:
    bucket.upload(large_version(tmp_path / "made", LARGE))
    s3.fault = only(".bin", held)
    port = str(free_port())
    with start_process(log, **settings, model_dir=bucket.url, port=port) as process:
        wait_until(lambda: s3.got("weights.bin"))
        server = Server(process, int(port), log)
        server.wait_for_log("listening|Uvicorn|being")
        server.signal()
        assert server.exit_code(20) == 0


def test_workers_share_a_mirror_and_another_takes_over(
    tmp_path: Path, log: Path, s3: Proxy, bucket: Bucket, settings: dict[str, str]
) -> None:
    bucket.upload(large_version(tmp_path / "made", LARGE))
    with running(bucket.url, log, **settings, workers="2") as server:
        assert weights(s3) == LARGE
        (fetched,) = server.events("source_version_fetched")
        pids = {each["worker"]: each["pid"] for each in server.events("worker_started")}
        os.kill(pids[fetched["worker"]], signal.SIGKILL)
        bucket.upload(large_version(tmp_path / "made", 100, 2))
        server.wait_for_log('"model_loaded".*m/2|m/2.*"model_loaded"')
        server.wait_for_log('"source_version_fetched".*m/2|m/2.*"source_version_fetched"')
        assert predicted(server) == 200
