"""What workers share needs no disk, and callers wait for descriptors instead of losing requests."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.access.entries import make_key
from tests.e2e.server import PLAIN, Server, post_on_the_wire, running
from tests.e2e.test_workers import REQUESTS, alive, started, until

SECRET, LINE = make_key("ops", ["admin", "predict"])
IDLE, CALLERS = 120, 20
LIMIT = 72  # open files; fewer than idle connections


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A small file system in memory."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "torchlane-test", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(params=["full", pytest.param("missing", marks=pytest.mark.soak)])
def unusable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A temporary folder in which nothing can be written."""
    folder = tmp_path / "unusable"
    if request.param == "missing":
        yield folder
        return
    with mounted(folder, "size=64k"):
        with contextlib.suppress(OSError), (folder / "filling").open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        yield folder


def answers(server: Server, path: str, item: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {SECRET}"}
    return httpx.post(server.url + path, json={"input": item}, headers=headers, verify=PLAIN)


def test_workers_need_no_temporary_folder(
    models: Path, log: Path, unusable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(unusable))
    before = sorted(unusable.glob("*"))
    with running(models, log, workers="2", api_keys=LINE) as server:
        for n in range(8):
            assert answers(server, "/predict", [n, 2]).status_code == 200
            assert answers(server, "/predict", "wrong").status_code == 422  # a new series
            assert answers(server, f"/models/none{n}/predict", [n, 2]).status_code == 404
        assert answers(server, "/admin/reload", []).is_success
        assert answers(server, "/admin/profile?seconds=0.1", []).is_success  # in another folder
        server.wait_for_metric(REQUESTS, lambda n: n == 24)
        assert server.log.count("worker_started") == 2, "a worker died"
        server.signal()
        assert server.exit_code() == 0
    assert sorted(unusable.glob("*")) == before


def test_a_killed_server_leaves_no_files(
    models: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    with running(models, log, workers="2", log_format="json") as server:
        assert answers(server, "/predict", [1, 2]).status_code == 200
        server.signal(signal.SIGKILL)
        until(lambda: not any(map(alive, started(log))), "the workers outlive their parent")
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.soak
def test_servers_with_the_same_metrics_folder_count_apart(
    models: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metrics").mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "metrics"))
    with running(models, log, workers="2", log_format="json") as one:
        assert answers(one, "/predict", [1, 2]).status_code == 200
        one.wait_for_metric(REQUESTS, lambda n: n == 1)
        there = {"host": "127.0.0.2", "port": str(one.port)}
        with running(models, tmp_path / "other.log", workers="2", **there) as other:
            for n in range(2):
                assert answers(other, "/predict", [n, 2]).status_code == 200
            other.wait_for_metric(REQUESTS, lambda n: n == 2)
            assert one.metric(REQUESTS) == 1
            other.signal()
            assert other.exit_code() == 0
        assert one.metric(REQUESTS) == 1
        assert "PROMETHEUS_MULTIPROC_DIR" in one.log
    assert not list((tmp_path / "metrics").iterdir())


def test_callers_wait_for_descriptors(models: Path, log: Path) -> None:
    with running(models, log, workers="2", log_format="json", head_timeout_s="60") as server:
        for pid in (server.process.pid, *started(log)):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        with contextlib.ExitStack() as stack:
            idle = [
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                for _ in range(IDLE)
            ]
            time.sleep(0.3)  # they are accepted, as far as possible
            callers = [
                stack.enter_context(post_on_the_wire(server.port, b'{"input": [%d, 2]}' % n))
                for n in range(CALLERS)
            ]
            ended, _, _ = select.select([*idle, *callers], [], [], 1.0)
            assert not ended, f"{len(ended)} connections were closed"
            for pid in started(log):  # files can still be opened
                assert len(os.listdir(f"/proc/{pid}/fd")) <= LIMIT - LIMIT // 8
            for each in idle:
                each.close()
            for caller in callers:
                caller.settimeout(20)
                assert caller.recv(65536).startswith(b"HTTP/1.1 200 OK")
        assert 1 <= server.log.count("cannot_accept") <= 2
        assert "Traceback" not in server.log
        server.signal()
        assert server.exit_code() == 0


def test_a_server_without_descriptors_stops_in_time(models: Path, log: Path) -> None:
    with running(models, log, workers="2", log_format="json", head_timeout_s="60") as server:
        for pid in started(log):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        with contextlib.ExitStack() as stack:
            for _ in range(2 * IDLE):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            server.wait_for_log("cannot_accept")
            server.signal()
            assert server.exit_code() == 0
