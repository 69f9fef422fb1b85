"""Around the base of deploy/kubernetes: the GPU overlay, metrics for scaling, and the document.

The definitions of the Prometheus operator are not among the schemas of Kubernetes: of its
PodMonitor only the fit with the Deployment is tested.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from app.api.origins import Hosts
from app.errors import UntrustedHost
from app.main import create_app
from app.settings import PREFIX, Settings
from tests.deploy.kustomization import KUBERNETES, POD_IP, build

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/kubernetes.md").read_text()
METRICS = (ROOT / "docs/metrics.md").read_text()


def test_the_gpu_overlay_uses_every_requested_gpu() -> None:
    gpu, base = build("overlays/gpu"), build("base")
    devices = gpu.environment["TORCHLANE_DEVICES"].split(",")
    count = gpu.server["resources"]["limits"]["nvidia.com/gpu"]
    assert devices == [f"cuda:{index}" for index in range(count)]
    (toleration,) = gpu.pod["tolerations"]
    assert toleration["key"] == "nvidia.com/gpu"
    rolling = gpu.one("Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxUnavailable": 1, "maxSurge": 0}
    rolling = base.one("Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxUnavailable": 0, "maxSurge": 1}
    same = {"TORCHLANE_DEVICES": ""}
    assert gpu.environment | same == base.environment | same


def test_production_has_keys_signatures_and_known_hosts() -> None:
    production = build("overlays/production")
    settings = production.environment
    volumes = {
        each["name"]: {how: what for how, what in each.items() if how != "name"}
        for each in production.pod["volumes"]
    }
    files = {
        mount["mountPath"]: volumes[mount["name"]]
        for mount in production.server["volumeMounts"]
        if mount["name"] not in ("artifacts", "tmp")
    }
    keys = Path(settings["TORCHLANE_API_KEYS_FILE"])
    assert files == {
        # No `optional`: without them the pod does not start.
        str(keys.parent): {"secret": {"secretName": "torchlane-api-keys"}},
        settings["TORCHLANE_TRUSTED_KEYS"]: {"configMap": {"name": "torchlane-signing-keys"}},
    }
    for command in (
        f"kubectl create secret generic torchlane-api-keys --from-file={keys.name}",
        "kubectl create configmap torchlane-signing-keys --from-file=",
    ):
        assert command in DOCUMENT, command
    hosts = Hosts(settings["TORCHLANE_TRUSTED_HOSTS"].split(","))
    service = production.one("Service")["metadata"]["name"]
    for host in (f"{service}:8000", f"{service}.models.svc.cluster.local:8000", f"{POD_IP}:8000"):
        hosts.check({b"host": host.encode()})  # Prometheus asks by the address of the pod
    with pytest.raises(UntrustedHost):
        hosts.check({b"host": b"attacker.example"})


def adapter_rule() -> dict[str, Any]:
    """The only rule for prometheus-adapter."""
    values = yaml.safe_load((KUBERNETES / "prometheus-adapter/values.yaml").read_text())
    (rule,) = values["rules"]["custom"]
    return dict(rule)


@pytest.mark.parametrize("folder", ["base", "overlays/gpu", "overlays/production"])
def test_the_scaler_uses_the_adapters_metric(folder: str) -> None:
    rule = adapter_rule()
    (metric,) = build(folder).one("HorizontalPodAutoscaler")["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert rule["name"]["as"] == name
    assert re.fullmatch(rule["name"]["matches"], name)
    assert rule["seriesQuery"].partition("{")[0] == name
    for label in rule["resources"]["overrides"]:
        assert f'{label}!=""' in rule["seriesQuery"]
    assert re.search(rf"^\| `{name}` \| gauge \|", METRICS, re.MULTILINE), "no such metric"


def test_the_adapters_queries_are_valid_promql(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool on PATH, which parses PromQL")
    rule = adapter_rule()
    query = rule["metricsQuery"]
    name = rule["name"]["as"]
    for part, value in {
        "Series": name,
        "LabelMatchers": 'namespace="default",pod=~"torchlane-1|torchlane-2"',
        "GroupBy": "pod",
    }.items():
        query = query.replace(f"<<.{part}>>", value)
    rules = [
        {"record": f"test:{index}", "expr": e}
        for index, e in enumerate([query, rule["seriesQuery"]])
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "adapter", "rules": rules}]}))
    command = [promtool, "check", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rules found" in done.stdout


def test_the_podmonitor_finds_the_pods() -> None:
    base = build("base")
    spec = build("podmonitor").one("PodMonitor")["spec"]
    assert spec["selector"]["matchLabels"].items() <= base.pod_metadata["labels"].items()
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] == base.server["ports"][0]["name"]
    assert endpoint["path"] in create_app(Settings(devices="cpu")).openapi()["paths"]


def test_documented_files_and_settings_exist() -> None:
    named = set(re.findall(r"deploy/kubernetes/[\w./-]*\w", DOCUMENT))
    assert named >= {"deploy/kubernetes/base", "deploy/kubernetes/overlays/gpu"}
    missing = [path for path in sorted(named) if not (ROOT / path).exists()]
    assert missing == ["deploy/kubernetes/overlays/mine/kustomization.yaml"]  # the reader's own
    variables = set(re.findall(rf"{PREFIX}[A-Z_]+", DOCUMENT))
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    assert "TORCHLANE_DRAIN_S" in variables
    assert variables <= known


def test_the_documented_overlay_builds(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    name = example.splitlines()[0].removeprefix("# deploy/kubernetes/")
    copy = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    (copy / name).parent.mkdir()
    (copy / name).write_text(example)
    mine, base = build(str(Path(name).parent), copy), build("base")
    for each in mine.objects:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    assert {each["metadata"]["namespace"] for each in mine.objects} == {"models"}
    assert {each["image"].partition("/")[0] for each in mine.containers} == {"registry.example.com"}
    added = {"TORCHLANE_CACHE_BYTES": "512MiB"}
    assert mine.environment == base.environment | added


def test_every_folder_is_documented() -> None:
    folders = {path.parent for path in KUBERNETES.rglob("*.yaml")}
    for folder in folders:
        assert f"deploy/kubernetes/{folder.relative_to(KUBERNETES)}" in DOCUMENT
