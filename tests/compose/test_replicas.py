"""Three servers behind HAProxy, as docs/scaling.md brings them up.

The same configuration balances real processes in tests/e2e/test_balanced.py.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import httpx
import pytest

from tests.compose.engine import available, docker, haproxy_from_package
from tests.compose.stack import BASE_IMAGE, PORTS, ROOT, TAG, UP_LIMIT_S, Stack
from tests.e2e.server import free_port

pytestmark = [pytest.mark.compose, pytest.mark.soak, pytest.mark.timeout(1800)]
CLUSTER = ROOT / "docker-compose.cluster.yml"
PUBLISHED = "haproxy:3.2-alpine"
SERVERS = 3
DIGITS = 40
SIDES = (1, 32, 32)
# In a container: what it has computed.
COMPUTED = """
import urllib.request
text = urllib.request.urlopen("http://127.0.0.1:8000/metrics").read().decode().splitlines()
wanted = "torchlane_items_computed_total{"
print(sum(float(line.rpartition(" ")[2]) for line in text if line.startswith(wanted)))
"""


@pytest.fixture(scope="module")
def clustered(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A second stack with three servers, on what the first one has exported."""
    ports = {name: str(free_port()) for name in (*PORTS, "BALANCER_PORT")}
    environment = stack.environment | ports
    if not available(PUBLISHED):
        environment["HAPROXY_IMAGE"] = f"torchlane-haproxy:{TAG}"
        base = environment.get("BASE_IMAGE", BASE_IMAGE)
        network = environment.get("BUILD_NETWORK", "default")
        haproxy_from_package(environment["HAPROXY_IMAGE"], base, network)
    exported = tmp_path_factory.mktemp("replicas") / "exported.json"
    volume = {"external": True, "name": f"{stack.project}_artifacts"}
    exported.write_text(json.dumps({"volumes": {"artifacts": volume}}))
    first, *others = stack.files
    made = replace(
        stack,
        environment=environment,
        project=f"{stack.project}-replicas",
        files=(first, CLUSTER, *others, exported),
        profiles=("cluster",),
    )
    command = made.begin_up("--scale", f"api={SERVERS}")
    try:
        told, _ = command.communicate(timeout=UP_LIMIT_S + 60)
        assert command.returncode == 0, told
        yield made
    finally:
        made.down()


def computed(stack: Stack, numbers: range) -> float:
    """Items that servers have computed, in all."""
    return sum(
        float(stack.compose("exec", "--no-TTY", "--index", str(n), "api", "python", "-c", COMPUTED))
        for n in numbers
    )


def test_equal_bodies_are_computed_once_across_servers(clustered: Stack) -> None:
    names = Counter(each["Service"] for each in clustered.containers())
    assert names["api"] == SERVERS
    before = computed(clustered, range(1, SERVERS + 1))
    with httpx.Client(base_url=clustered.url("BALANCER_PORT"), timeout=30) as client:
        for number in [*range(DIGITS)] * 3:
            answer = client.post("/predict", json={"input": picture(number, SIDES)})
            assert answer.status_code == 200, answer.text
        assert client.get("/metrics").status_code == 404
    assert computed(clustered, range(1, SERVERS + 1)) - before == DIGITS


def picture(number: int, sides: Sequence[int]) -> object:
    """Nested numbers of this shape, different for each number."""
    if not sides:
        return (number % 50) / 50
    return [picture(number + place, sides[1:]) for place in range(sides[0])]


def test_prometheus_scrapes_every_server_and_haproxy(clustered: Stack) -> None:
    if "prometheus" in clustered.left_out:
        pytest.skip("the image of prometheus cannot be pulled, and no binary of it is here")
    url, deadline = clustered.url("PROMETHEUS_PORT"), time.monotonic() + 60
    wanted = {"torchlane": SERVERS, "haproxy": 1}
    found: dict[str, int] = {}
    while found != wanted and time.monotonic() < deadline:
        query = {"query": 'count by (job) (up{job!="prometheus"} == 1)'}
        told = httpx.get(f"{url}/api/v1/query", params=query).json()["data"]["result"]
        found = {each["metric"]["job"]: int(each["value"][1]) for each in told}
        time.sleep(0.5)
    assert found == wanted


def test_stopping_a_server_under_load_fails_no_request(clustered: Stack) -> None:
    statuses: Counter[int] = Counter()
    ends = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=clustered.url("BALANCER_PORT"), timeout=30) as client:
            picture_png = (ROOT / "docs/three.png").read_bytes()
            png = {"Content-Type": "image/png"}
            while not ends.is_set():
                statuses[client.post("/predict", content=picture_png, headers=png).status_code] += 1
                statuses[client.get("/models/digits").status_code] += 1

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    stopped = f"{clustered.project}-api-2"
    docker("stop", "--time", "50", stopped, limit_s=90)
    time.sleep(2)
    ends.set()
    for thread in threads:
        thread.join()
    code = docker("inspect", "--format", "{{.State.ExitCode}}", stopped).strip()
    assert (set(statuses), code) == ({200}, "0")
    assert statuses[200] > 50
