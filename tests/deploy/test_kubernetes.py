"""deploy/kubernetes: it builds, the schemas of Kubernetes accept it, and its parts fit together."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest

from app.main import create_app
from app.processes.server import RESERVE
from app.settings import PREFIX, Settings, SettingsError, load_settings
from models.stores.urls import StoreUrl
from tests.deploy.kustomization import KUBERNETES, Rendered, build

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/kubernetes.md").read_text()
# The oldest release that knows every field, and the newest whose schemas are installed.
RELEASES = ("1.27", kubernetes_validate.latest_version())
BALANCER = "torchlane-balancer"
WITH_IMAGE = ("base", "overlays/gpu", "overlays/production", "overlays/cluster")  # of a model
USER = 10001  # of the image
RESERVE_S = 5  # at least, from the end of the drain to SIGKILL


@pytest.fixture(scope="module", params=[*WITH_IMAGE, "overlays/store"])
def rendered(request: pytest.FixtureRequest) -> Rendered:
    """Each kustomization, built, without a balancer: test_kubernetes_cluster.py looks at that."""
    _, servers = build(str(request.param)).parts(BALANCER)
    return servers


@pytest.fixture
def settings(rendered: Rendered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """What the server makes of the ConfigMap, alone in the environment."""
    monkeypatch.chdir(tmp_path)  # no .env file
    for name in list(os.environ):
        if name.upper().startswith(PREFIX):
            monkeypatch.delenv(name)
    for name, value in rendered.environment.items():
        monkeypatch.setenv(name, value)
    return load_settings(os.environ)


@pytest.mark.parametrize("release", RELEASES)
def test_every_object_is_valid(rendered: Rendered, release: str) -> None:
    assert {each["kind"] for each in rendered.objects} == {
        *("ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy"),
        *("PodDisruptionBudget", "Service", "ServiceAccount"),
    }
    for each in rendered.objects:
        kubernetes_validate.validate(each, release, strict=True)


def test_no_object_names_a_namespace(rendered: Rendered) -> None:
    assert [each for each in rendered.objects if "namespace" in each["metadata"]] == []


def test_the_server_accepts_its_settings(rendered: Rendered, settings: Settings) -> None:
    assert settings.host == "0.0.0.0"
    assert settings.log_format == "json"
    (reference,) = rendered.server["envFrom"]
    assert reference == {"configMapRef": {"name": rendered.one("ConfigMap")["metadata"]["name"]}}


@pytest.mark.parametrize(
    "variable", [("TORCHLANE_PORT", "tcp://10.0.0.1:8000"), ("TORCHLANE_SERVICE_HOST", "10.0.0.1")]
)
def test_service_link_variables_are_disabled(
    rendered: Rendered,
    settings: Settings,
    variable: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert rendered.pod["enableServiceLinks"] is False
    service = rendered.one("Service")["metadata"]["name"]
    assert variable[0].startswith(f"{service.upper()}_")
    monkeypatch.setenv(*variable)  # what would happen otherwise
    with pytest.raises(SettingsError, match=variable[0]):
        load_settings(os.environ)


def test_the_grace_period_covers_the_drain(rendered: Rendered, settings: Settings) -> None:
    program, seconds = rendered.server["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    needed_s = float(seconds) + settings.drain_s + RESERVE_S
    assert rendered.pod["terminationGracePeriodSeconds"] >= needed_s


def test_the_drain_covers_the_request_timeout(settings: Settings) -> None:
    assert (1 - RESERVE) * settings.drain_s >= settings.request_timeout_ms / 1000


def test_selectors_match_the_pods(rendered: Rendered) -> None:
    spread = rendered.pod["topologySpreadConstraints"]
    selectors = [
        rendered.one("Deployment")["spec"]["selector"]["matchLabels"],
        rendered.one("Service")["spec"]["selector"],
        rendered.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        rendered.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(each["labelSelector"]["matchLabels"] for each in spread),
    ]
    assert len(selectors) == 6
    for selector in selectors:
        assert selector
        assert selector.items() <= rendered.pod_metadata["labels"].items()


@pytest.mark.parametrize("folder", ["base", "overlays/gpu", "overlays/production"])
def test_the_network_policy_limits_callers_and_blocks_egress(folder: str) -> None:
    policy = build(folder).one("NetworkPolicy")["spec"]
    (rule,) = policy["ingress"]
    labels = [selector["matchLabels"] for each in rule["from"] for selector in each.values()]
    assert labels == [
        {"kubernetes.io/metadata.name": "ingress-nginx"},
        {"kubernetes.io/metadata.name": "monitoring"},
        {"torchlane-client": "true"},
    ]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []


def test_ports_match_the_servers_setting(rendered: Rendered, settings: Settings) -> None:
    (port,) = rendered.server["ports"]
    (service_port,) = rendered.one("Service")["spec"]["ports"]
    (rule,) = rendered.one("NetworkPolicy")["spec"]["ingress"]
    assert port["containerPort"] == settings.port == service_port["port"]
    assert service_port["targetPort"] == port["name"] == rule["ports"][0]["port"]
    assert rendered.pod_metadata["annotations"]["prometheus.io/port"] == str(port["containerPort"])


def test_probes_use_paths_that_the_server_has(rendered: Rendered) -> None:
    paths = create_app(Settings(devices="cpu")).openapi()["paths"]
    probes = {
        name: rendered.server[f"{name}Probe"] for name in ("startup", "readiness", "liveness")
    }
    assert {name: probe["httpGet"]["path"] for name, probe in probes.items()} == {
        "startup": "/health/ready",
        "readiness": "/health/ready",
        "liveness": "/health/live",
    }
    for probe in probes.values():
        assert "get" in paths[probe["httpGet"]["path"]]
        assert probe["httpGet"]["port"] == rendered.server["ports"][0]["name"]
        assert probe["timeoutSeconds"] <= probe["periodSeconds"]
    annotations = rendered.pod_metadata["annotations"]
    assert annotations["prometheus.io/path"] in paths


def test_the_rollout_deadline_exceeds_the_startup_probe(rendered: Rendered) -> None:
    probe = rendered.server["startupProbe"]
    patience_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert rendered.one("Deployment")["spec"]["progressDeadlineSeconds"] > patience_s


def test_the_pod_passes_the_restricted_security_standard(rendered: Rendered) -> None:
    pod = rendered.pod
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for each in rendered.containers:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    account = rendered.one("ServiceAccount")
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert pod["automountServiceAccountToken"] is False
    assert account["automountServiceAccountToken"] is False
    kinds = {kind for volume in pod["volumes"] for kind in volume.keys() - {"name"}}
    assert kinds <= {"emptyDir", "secret", "configMap"}
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}


@pytest.mark.parametrize("rendered", WITH_IMAGE, indirect=True)
def test_the_model_is_copied_to_the_model_folder(rendered: Rendered, settings: Settings) -> None:
    (init,) = rendered.pod["initContainers"]
    folder = str(settings.model_dir)
    source, target = init["command"][-2:]
    assert target == f"{folder}/"
    dockerfile = (KUBERNETES / "model.Dockerfile").read_text()
    assert f"COPY --chown=10001:10001 . {source.removesuffix('/.')}\n" in dockerfile
    assert init["volumeMounts"] == [{"name": "artifacts", "mountPath": folder}]
    mounts = {each["mountPath"]: each for each in rendered.server["volumeMounts"]}
    assert mounts[folder] == {"name": "artifacts", "mountPath": folder, "readOnly": True}
    assert mounts["/tmp"] == {"name": "tmp", "mountPath": "/tmp"}
    assert all(each.get("readOnly") for path, each in mounts.items() if path != "/tmp")
    volumes = {each["name"]: each for each in rendered.pod["volumes"]}
    assert set(volumes) == {each["name"] for each in mounts.values()}
    assert "sizeLimit" in volumes["tmp"]["emptyDir"]
    assert "sizeLimit" in volumes["artifacts"]["emptyDir"]


def test_memory_is_limited_and_cpu_is_not(rendered: Rendered) -> None:
    for each in rendered.containers:
        requests, limits = each["resources"]["requests"], each["resources"]["limits"]
        assert requests["memory"] == limits["memory"]
        assert "cpu" in requests
        assert "cpu" not in limits  # a quota stops whoever bursts: docs/kubernetes.md


def test_scaling_and_disruption_keep_a_pod_running(rendered: Rendered) -> None:
    deployment = rendered.one("Deployment")
    scaler = rendered.one("HorizontalPodAutoscaler")["spec"]
    budget = rendered.one("PodDisruptionBudget")["spec"]
    assert scaler["scaleTargetRef"] == {
        "apiVersion": deployment["apiVersion"],
        "kind": deployment["kind"],
        "name": deployment["metadata"]["name"],
    }
    assert "replicas" not in deployment["spec"], "an apply would undo what was scaled"
    assert budget["maxUnavailable"] < scaler["minReplicas"] < scaler["maxReplicas"]
    rolling = deployment["spec"]["strategy"]["rollingUpdate"]
    assert rolling["maxUnavailable"] < scaler["minReplicas"]
    assert rolling["maxUnavailable"] + rolling["maxSurge"] == 1
    down = scaler["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] >= 300
    (policy,) = down["policies"]
    assert policy["value"] == 1
    assert policy["periodSeconds"] >= rendered.pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("rendered", ["overlays/store"], indirect=True)
def test_files_from_a_store_fit_their_volume(rendered: Rendered, settings: Settings) -> None:
    """A pod whose volume exceeds its size is evicted."""
    assert isinstance(settings.model_dir, StoreUrl)
    assert rendered.pod["initContainers"] == []
    mounts = {each["mountPath"]: each["name"] for each in rendered.server["volumeMounts"]}
    assert mounts == {str(settings.source_cache): "cache", "/tmp": "tmp"}
    volumes = {each["name"]: each["emptyDir"]["sizeLimit"] for each in rendered.pod["volumes"]}
    assert volumes.keys() == {"cache", "tmp"}
    size = int(volumes["cache"].removesuffix("Gi")) << 30
    assert 0.8 * size < settings.source_cache_bytes < size
    probe = rendered.server["startupProbe"]
    waits_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert waits_s < rendered.one("Deployment")["spec"]["progressDeadlineSeconds"]
    ports = [rule["ports"] for rule in rendered.one("NetworkPolicy")["spec"]["egress"]]
    assert {"port": 443, "protocol": "TCP"} in ports[0]


@pytest.mark.parametrize("rendered", WITH_IMAGE, indirect=True)
def test_images_are_pinned_to_this_release(rendered: Rendered) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    tags = dict(each["image"].rsplit(":", 1) for each in rendered.containers)
    assert set(tags) == {"torchlane", "torchlane-model"}
    assert tags["torchlane"] in {version, f"{version}-cuda"}
    assert re.fullmatch(r"digits-\d+(-cuda)?", tags["torchlane-model"])
    for name, tag in tags.items():
        assert f"{name}:{tag}" in DOCUMENT, "the document builds another image"
