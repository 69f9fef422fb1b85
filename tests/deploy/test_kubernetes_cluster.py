"""deploy/kubernetes/overlays/cluster: HAProxy fits the servers that it stands before."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.kustomization import Rendered, build
from tests.deploy.test_kubernetes import BALANCER, RELEASES, RESERVE_S
from tests.e2e.balanced import SHIPPED, haproxy


@pytest.fixture(scope="module")
def parts() -> tuple[Rendered, Rendered]:
    """The balancer's objects, and those of the servers."""
    return build("overlays/cluster").parts(BALANCER)


@pytest.fixture
def balancer(parts: tuple[Rendered, Rendered]) -> Rendered:
    return parts[0]


@pytest.fixture
def servers(parts: tuple[Rendered, Rendered]) -> Rendered:
    return parts[1]


def environment(balancer: Rendered) -> dict[str, str]:
    listed = {each["name"]: each.get("value", "models") for each in balancer.server["env"]}
    return {k: v.replace("$(POD_NAMESPACE)", "models") for k, v in listed.items()}


def service(balancer: Rendered, name: str) -> dict[str, Any]:
    (found,) = [
        each["spec"]
        for each in balancer.objects
        if each["kind"] == "Service" and each["metadata"]["name"] == name
    ]
    return dict(found)


def matches(selector: dict[str, str], of: Rendered) -> bool:
    return bool(selector.items() <= of.pod_metadata["labels"].items())


@pytest.mark.parametrize("release", RELEASES)
def test_every_object_is_valid(balancer: Rendered, release: str) -> None:
    assert sorted(each["kind"] for each in balancer.objects) == [
        *("ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "Service")
    ]
    for each in balancer.objects:
        kubernetes_validate.validate(each, release, strict=True)
        assert "namespace" not in each["metadata"]


def test_haproxy_accepts_its_configuration(balancer: Rendered) -> None:
    config = balancer.one("ConfigMap")
    assert config["data"] == {SHIPPED.name: SHIPPED.read_text()}
    (volume,) = balancer.pod["volumes"]
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    folder = balancer.server["volumeMounts"][0]["mountPath"]
    assert balancer.server["command"][-1] == f"{folder}/{SHIPPED.name}"
    set_here = {name for name in environment(balancer) if name.startswith("BALANCER_")}
    assert set_here <= set(re.findall(r"BALANCER_[A-Z_]+", SHIPPED.read_text()))
    grpc = {"BALANCER_GRPC_BIND": ":8001", "BALANCER_GRPC_PORT": "8001"}
    command = [haproxy(), "-c", "-f", str(SHIPPED)]
    for more in ({}, grpc):
        given = {**environment(balancer), **more}
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "WARNING" not in done.stdout + done.stderr


def test_haproxy_finds_every_server(balancer: Rendered, servers: Rendered) -> None:
    name, namespace, *domain = environment(balancer)["BALANCER_SERVERS"].split(".")
    assert (namespace, domain) == ("models", ["svc", "cluster", "local"])
    headless = service(balancer, name)
    assert headless["clusterIP"] == "None"
    assert matches(headless["selector"], servers)
    assert not matches(headless["selector"], balancer)
    assert headless["ports"][0]["targetPort"] == servers.server["ports"][0]["name"]
    slots = re.search(r"presetenv BALANCER_SLOTS (\d+)", SHIPPED.read_text())
    assert slots is not None
    scaler = servers.one("HorizontalPodAutoscaler")["spec"]
    assert int(slots[1]) > scaler["maxReplicas"] + 1  # and one more during a rollout


def test_clients_reach_haproxy_which_reaches_the_servers(
    balancer: Rendered, servers: Rendered
) -> None:
    front = service(balancer, BALANCER)
    assert matches(front["selector"], balancer)
    assert front["ports"][0]["targetPort"] == balancer.server["ports"][0]["name"]
    policy = balancer.one("NetworkPolicy")["spec"]
    assert matches(policy["podSelector"]["matchLabels"], balancer)
    to_servers, to_dns = policy["egress"]
    assert matches(to_servers["to"][0]["podSelector"]["matchLabels"], servers)
    assert [each["port"] for each in to_dns["ports"]] == [53, 53]
    of_servers = servers.one("NetworkPolicy")["spec"]
    assert of_servers["egress"] == []
    (let_in,) = of_servers["ingress"]
    only, prometheus = (
        selector["matchLabels"] for each in let_in["from"] for selector in each.values()
    )
    assert matches(only, balancer)
    assert not matches(only, servers)
    assert prometheus == {"kubernetes.io/metadata.name": "monitoring"}


def test_grace_period_and_answer_timeout_are_long_enough(
    balancer: Rendered, servers: Rendered
) -> None:
    _, seconds = balancer.server["lifecycle"]["preStop"]["exec"]["command"]
    stop = re.search(r"hard-stop-after (\d+)s", SHIPPED.read_text())
    assert stop is not None
    needed_s = int(seconds) + int(stop[1]) + RESERVE_S
    assert balancer.pod["terminationGracePeriodSeconds"] >= needed_s
    answer_s = int(environment(balancer)["BALANCER_ANSWER_TIME"].removesuffix("s"))
    assert answer_s > int(servers.environment["TORCHLANE_REQUEST_TIMEOUT_MS"]) / 1000


def test_the_pod_passes_the_restricted_security_standard(balancer: Rendered) -> None:
    pod = balancer.pod
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["enableServiceLinks"] is pod["automountServiceAccountToken"] is False
    assert balancer.server["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    resources = balancer.server["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_disruption_and_rollout_keep_one_pod(balancer: Rendered) -> None:
    deployment, budget = balancer.one("Deployment"), balancer.one("PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] < deployment["spec"]["replicas"]
    assert matches(budget["spec"]["selector"]["matchLabels"], balancer)
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
