"""The stack, up: answers, load, a killed process, a stop under load; the tests' order matters."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.compose.engine import docker
from tests.compose.stack import ROOT, Stack
from tests.docs.blocks import blocks, curl_blocks

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]
THREE = ROOT / "docs/three.png"
LOAD_S = 10.0
USERS = 16
RECOVERY_LIMIT_S = 60.0
DRAIN_CONNECTIONS = 24
DRAIN_LOAD = ROOT / "tests/compose/drain_load.py"
# The process that serves: the child of tini, which is process 1.
KILL = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    with open(f"/proc/{pid}/cmdline") as file:
        command = file.read().split("\\0")
    if command[0] == "python" and "serve" in command:
        os.kill(int(pid), signal.SIGKILL)
        print("killed", pid)
"""


def api(stack: Stack) -> str:
    return stack.url("TORCHLANE_PORT")


def label_of_three(stack: Stack) -> str:
    picture = {"Content-Type": "image/png"}
    answer = httpx.post(f"{api(stack)}/predict", content=THREE.read_bytes(), headers=picture)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["prediction"]["label"])


def test_every_service_is_up_and_healthy(stack: Stack) -> None:
    states = {
        container["Name"].removeprefix(f"{stack.project}-"): (
            container["State"],
            container["Health"] or container["ExitCode"],
        )
        for container in stack.containers()
    }
    healthy = ("running", "healthy")
    wanted = {
        "export-1": ("exited", 0),
        "api-1": healthy,
        "locust-1": healthy,
        "locust-worker-1": healthy,
        "locust-worker-2": healthy,
        "prometheus-1": healthy,
        "grafana-1": healthy,
    }
    wanted = {k: v for k, v in wanted.items() if k.removesuffix("-1") not in stack.left_out}
    assert states == wanted


@pytest.mark.parametrize("document", ["README.md", "docs/deploy.md"])
def test_the_server_answers_documented_examples(stack: Stack, document: str) -> None:
    scripts = [script for script, _ in curl_blocks(document) if "pairwise" not in script]
    assert scripts
    for script in scripts:
        here = script.replace("http://127.0.0.1:8000", api(stack))
        done = subprocess.run(
            ["bash", "-ec", here], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
        assert '"code"' not in done.stdout
    assert label_of_three(stack) == "3"


def test_the_server_can_run_the_compiled_variant(stack: Stack) -> None:
    """The export image has a compiler, and /tmp of the serving container may be executed."""
    info = httpx.get(f"{api(stack)}/models/digits?full=true").json()
    # as many replicas as are quickest
    forms = {step["form"] for replica in info["replicas"] for step in replica["plan"]["steps"]}
    assert forms
    assert "compiled" in info["manifest"]["variants"]
    assert forms <= {"compiled", "script", "script, optimized at load"}
    assert "variant_unusable" not in stack.compose("logs", "api")


def test_the_server_runs_unprivileged_and_cannot_write(stack: Stack) -> None:
    status = dict(
        line.split(":", 1)
        for line in stack.run_in("api", "cat", "/proc/1/status").splitlines()
        if ":" in line
    )
    assert status["Uid"].split() == ["10001"] * 4
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    probe = "for d in / /opt/torchlane /artifacts /etc; do touch $d/x 2>/dev/null && echo $d; done"
    assert stack.run_in("api", "sh", "-c", f"{probe}; true") == ""
    assert stack.inspect("api")["HostConfig"]["ReadonlyRootfs"] is True


def test_a_second_up_does_not_export_again(stack: Stack) -> None:
    stack.compose("up", "--detach", "--force-recreate", "--no-deps", "export")
    assert docker("wait", f"{stack.project}-export-1", limit_s=60) == "0\n"
    assert "/artifacts/digits/1 exists; nothing to do" in stack.compose("logs", "export")
    assert [v["version"] for v in httpx.get(f"{api(stack)}/models/digits").json()["versions"]] == [
        1
    ]


def test_prometheus_scrapes_the_server(stack: Stack) -> None:
    if "prometheus" in stack.left_out:
        pytest.skip("the image of prometheus cannot be pulled, and no binary of it is here")
    url = stack.url("PROMETHEUS_PORT")
    deadline = time.monotonic() + 30
    found: list[Any] = []
    while not found and time.monotonic() < deadline:
        query = {"query": 'up{job="torchlane"} == 1'}
        found = httpx.get(f"{url}/api/v1/query", params=query).json()["data"]["result"]
        time.sleep(0.5)
    assert len(found) == 1
    groups = httpx.get(f"{url}/api/v1/rules").json()["data"]["groups"]
    assert all(rule["health"] != "err" for group in groups for rule in group["rules"])
    assert sum(len(group["rules"]) for group in groups) > 0


def test_grafana_shows_the_dashboard(stack: Stack) -> None:
    if "grafana" in stack.left_out:
        pytest.skip("the image of grafana cannot be pulled here; its queries are tested elsewhere")
    url = stack.url("GRAFANA_PORT")
    found = httpx.get(f"{url}/api/search", params={"type": "dash-db"}).json()
    assert [each["uid"] for each in found] == ["torchlane"]
    assert httpx.get(f"{url}/api/admin/settings").status_code in {401, 403}


def test_locust_workers_get_only_right_answers(stack: Stack) -> None:
    url = stack.url("LOCUST_PORT")
    swarm = {"user_count": USERS, "spawn_rate": USERS, "host": "http://api:8000"}
    assert httpx.post(f"{url}/swarm", data=swarm).json()["success"] is True
    time.sleep(LOAD_S)
    stats = httpx.get(f"{url}/stats/requests").json()
    httpx.post(f"{url}/stop").raise_for_status()
    print(f"Locust: {stats['total_rps']:,.0f} requests/s, failed {stats['fail_ratio']:.2%}")  # noqa: T201
    assert len(stats["workers"]) == 2
    assert stats["errors"] == []
    assert stats["fail_ratio"] == 0
    assert {s["name"]: s["num_requests"] for s in stats["stats"]}["Aggregated"] > 100


@pytest.mark.soak
def test_find_capacity_works_inside_the_stack(stack: Stack, tmp_path: Path) -> None:
    """As docs/deploy.md says, with less time, and the reports to another folder."""
    (block,) = (text for _, text in blocks("docs/deploy.md") if "find-capacity" in text)
    search, copy = (
        line.removeprefix("docker compose --profile load ").split()
        for line in block.strip().splitlines()
    )
    printed = stack.compose(*search, "--budget-s", "8", limit_s=120)
    print(printed)  # noqa: T201
    assert "requests/s" in printed
    stack.compose(*copy[:-1], str(tmp_path / copy[-1]))
    listed = {file.name for file in (tmp_path / "reports").iterdir()}
    assert {"capacity.html", "capacity.json"} <= listed


def test_a_killed_server_restarts_and_becomes_ready(stack: Stack) -> None:
    before = stack.inspect("api")
    assert stack.run_in("api", "python", "-c", KILL).startswith("killed")
    deadline = time.monotonic() + RECOVERY_LIMIT_S
    while True:
        now = stack.inspect("api")
        if now["RestartCount"] == before["RestartCount"] + 1 and ready(stack):
            break
        assert time.monotonic() < deadline, now["State"]
        time.sleep(0.2)
    assert now["State"]["Pid"] != before["State"]["Pid"]
    assert label_of_three(stack) == "3"


def ready(stack: Stack) -> bool:
    try:
        return httpx.get(f"{api(stack)}/health/ready", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def test_a_stop_under_load_loses_no_accepted_request(stack: Stack) -> None:
    load = stack.start(
        "locust", "python", "-c", DRAIN_LOAD.read_text(), "http://api:8000", str(DRAIN_CONNECTIONS)
    )
    assert load.stdout is not None
    assert load.stdout.readline().strip() == "loading"
    time.sleep(2)
    began = time.monotonic()
    stack.compose("stop", "api")
    took_s = time.monotonic() - began
    printed, _ = load.communicate(timeout=100)
    found = json.loads(printed)
    print(f"stopped in {took_s:.1f} s: {found['counts']}")  # noqa: T201
    assert load.returncode == 0
    assert found["wrong"] == []
    assert found["counts"].get("lost", 0) == 0
    assert found["counts"]["answered"] > 100
    unread = found["counts"].get("unread", 0)
    assert unread <= DRAIN_CONNECTIONS // 2  # only those that are opened anew can be
    assert found["counts"]["refused"] == DRAIN_CONNECTIONS - unread
    state = stack.inspect("api")["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False)
    log = stack.compose("logs", "api")
    assert log.index('"draining"') < log.rindex('"stopped"')


def test_down_removes_everything(stack: Stack) -> None:
    stack.down()
    mine = ("--filter", f"label=com.docker.compose.project={stack.project}", "--quiet")
    for kind in (("ps", "--all"), ("volume", "ls"), ("network", "ls")):
        assert docker(*kind, *mine) == ""
