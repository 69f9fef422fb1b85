"""Servers of the benchmark: ready or a reason why not, asleep unless measured, gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtests.bench.environments import PEERS, ROOT
from loadtests.bench.servers import (
    Cores,
    Fleet,
    Server,
    ServerError,
    ServerSpec,
    choose_cores,
    pinned,
)
from loadtests.traffic.target import TargetError, exchange

BARE = ServerSpec(
    "bare",
    (sys.executable, str(PEERS / "bare_asgi" / "server.py")),
    (("BENCH_PORT", "{port}"), ("PYTHONPATH", str(ROOT))),
)
needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="the system cannot pin processes"
)
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for(pid: int, state: str) -> None:
    """A signal need not be noticed at once."""
    give_up_at = time.monotonic() + 10
    while state_of(pid) != state and time.monotonic() < give_up_at:
        time.sleep(0.001)
    assert state_of(pid) == state


@needs_affinity
@needs_proc
def test_server_is_pinned_suspended_and_ended() -> None:
    cores = os.sched_getaffinity(0)
    spec = ServerSpec(BARE.name, BARE.command, BARE.environment, core=max(cores))
    with Fleet() as fleet:
        fleet.start(spec)
        fleet.start(spec)  # it runs already
        assert fleet.specs == (spec,)
        with fleet.awake(spec) as server:
            assert os.sched_getaffinity(server.process.pid) == {max(cores)}
            assert os.sched_getaffinity(0) == cores
            reply = exchange(server.url, "POST", "/predict", body=b"{}")
            assert (reply.status, reply.body) == (200, b"{}")
            assert server.cpu_s() > 0
        wait_for(server.process.pid, "T")
    assert server.process.returncode is not None
    with pytest.raises(TargetError, match="nothing listens at"):
        exchange(server.url, "GET", "/")


def test_failed_start_includes_the_reason() -> None:
    command = (sys.executable, "-c", "raise SystemExit('no such model')")
    with (
        Fleet() as fleet,
        pytest.raises(ServerError, match=r"exit code 1 before it was ready(.|\n)*no such model"),
    ):
        fleet.start(ServerSpec("broken", command))


def test_server_error_includes_name_and_log() -> None:
    command = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "{port}")
    spec = ServerSpec("files", command)
    said = r"^files: nothing listens at (.|\n)*GET / HTTP/1.1. 200"
    with Fleet() as fleet:
        fleet.start(spec)
        with fleet.awake(spec) as server:
            server.process.kill()
            server.process.wait()
        with pytest.raises(TargetError, match=said), fleet.awake(spec):
            exchange(server.url, "GET", "/")


@needs_proc
def test_cpu_time_covers_all_processes_of_a_session(tmp_path: Path) -> None:
    spin = "import time; end = time.process_time() + 3\nwhile time.process_time() < end: pass"
    code = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {spin!r}]).wait()"
    code += "\nimport time; time.sleep(30)"
    # a child that has ended counts no more: look while it spins
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        with (tmp_path / "log").open("wb") as log:
            server = Server("spinning", 1, 0, process, log)
            give_up_at = time.monotonic() + 20
            while server.cpu_s() < 0.5 and time.monotonic() < give_up_at:
                time.sleep(0.05)
            assert server.cpu_s() >= 0.5
    finally:
        server.signal_all(signal.SIGKILL)
        process.wait()
    server.signal_all(signal.SIGKILL)  # none is left: no error


@needs_proc
def test_signals_reach_workers_in_other_process_groups(tmp_path: Path) -> None:
    sleep = "import time; time.sleep(30)"
    code = f"import subprocess, sys\nworker = subprocess.Popen([sys.executable, '-c', {sleep!r}],"
    code += " process_group=0)\nprint(worker.pid, flush=True)\nworker.wait()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout as told, (tmp_path / "log").open("wb") as log:
        server, worker = Server("forking", 1, 0, process, log), int(told.readline())
        try:
            assert os.getpgid(worker) == worker
            assert server.workers == 1  # and its parent
            server.signal_all(signal.SIGSTOP)
            wait_for(worker, "T")
        finally:
            server.signal_all(signal.SIGKILL)
            process.wait()


@needs_affinity
def test_load_and_server_get_different_cores() -> None:
    usable = sorted(os.sched_getaffinity(0))
    with pinned(usable[0]):
        assert choose_cores() == Cores(None, None)
    cores = choose_cores()
    assert (cores.server is None) == (len(usable) == 1)
    assert cores.server is None or cores.server != cores.generator
