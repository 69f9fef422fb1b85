"""deploy/helm: Helm renders the chart, and its objects are those of the kustomizations."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kustomization import Rendered, build

helm = pytest.importorskip(
    "helm_python", reason="the extra `dev` has Helm's code only for Linux on x86-64"
)
ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/torchlane"
CHECKSUM = "checksum/settings"
Json = dict[str, Any]


def render(values: Json | None = None, release: str = "torchlane") -> Rendered:
    """The objects of the chart."""
    with helm.Chart.load(CHART) as chart:
        files = chart.render(values, name=release)
    (text,) = files.values()
    return Rendered(tuple(each for each in yaml.safe_load_all(text) if each))


def comparable(rendered: Rendered) -> dict[str, Json]:
    """Objects by kind, without how the two tools restart pods when a setting has changed."""
    objects = {each["kind"]: copy.deepcopy(each) for each in rendered.objects}
    assert len(objects) == len(rendered.objects)
    pod = objects["Deployment"]["spec"]["template"]
    pod["metadata"]["annotations"].pop(CHECKSUM, None)
    (source,) = pod["spec"]["containers"][0]["envFrom"]
    settings = objects["ConfigMap"]["metadata"]
    assert source["configMapRef"]["name"] == settings["name"]
    source["configMapRef"]["name"] = settings["name"] = "torchlane"
    return objects


def strings(value: object) -> Iterator[str]:
    """Every string in a document, except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


@pytest.mark.parametrize(
    ("values", "folder"),
    [(None, "base"), ("gpu.yaml", "overlays/gpu"), ("store.yaml", "overlays/store")],
    ids=["base", "gpu", "store"],
)
def test_the_objects_are_those_of_a_kustomization(values: str | None, folder: str) -> None:
    chosen = None if values is None else yaml.safe_load((CHART / values).read_text())
    assert comparable(render(chosen)) == comparable(build(folder))


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_releases_in_one_namespace_share_nothing() -> None:
    release = "ml-2"
    rendered = render(release=release)
    assert {each["metadata"]["name"] for each in rendered.objects} == {release}
    labels = rendered.pod_metadata["labels"]
    assert labels.pop("app.kubernetes.io/part-of") == "torchlane"  # a PodMonitor selects all by it
    assert "torchlane" not in set(strings(list(rendered.objects)))
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment"):
        spec = rendered.one(kind)["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        assert selector.get("matchLabels", selector) == labels


def test_settings_add_to_the_base_and_restart_pods() -> None:
    before = render()
    after = render({"settings": {"TORCHLANE_WORKERS": "2", "TORCHLANE_DRAIN_S": "40"}})
    changed = {"TORCHLANE_WORKERS": "2", "TORCHLANE_DRAIN_S": "40"}
    assert after.environment == {**before.environment, **changed}
    sums = [each.pod_metadata["annotations"][CHECKSUM] for each in (before, after)]
    assert sums[0] != sums[1]


def test_values_change_images_and_parts_of_objects() -> None:
    rendered = render(
        {
            "image": {"repository": "registry.example/torchlane"},
            "model": {"tag": "digits-2"},
            "pod": {"nodeSelector": {"disk": "ssd"}},
            "container": {"resources": {"limits": {"memory": "4Gi"}}},
            "deployment": {"revisionHistoryLimit": 1},
            "autoscaler": {"maxReplicas": 10},
            "networkPolicy": {"policyTypes": ["Ingress"]},
        }
    )
    images = [each["image"] for each in rendered.containers]
    assert images == ["torchlane-model:digits-2", "registry.example/torchlane:1.0.0"]
    assert rendered.pod["nodeSelector"] == {"disk": "ssd"}
    assert rendered.server["resources"] == {
        "requests": {"cpu": "2", "memory": "2Gi"},
        "limits": {"memory": "4Gi"},
    }
    assert rendered.one("Deployment")["spec"]["revisionHistoryLimit"] == 1
    scaling = rendered.one("HorizontalPodAutoscaler")["spec"]
    assert (scaling["minReplicas"], scaling["maxReplicas"]) == (2, 10)
    assert rendered.one("NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]


@pytest.mark.parametrize("url", ["s3://bucket/models", "models:/digits@champion"])
def test_a_store_without_a_volume_is_refused(url: str) -> None:
    settings = {"TORCHLANE_MODEL_DIR": url}
    with pytest.raises(helm.HelmError, match=r"whose files need a volume: add .*store\.yaml"):
        render({"settings": settings})
    rendered = render({"settings": {**settings, "TORCHLANE_SOURCE_CACHE": "/tmp"}})
    assert [each["image"] for each in rendered.containers] == ["torchlane:1.0.0"]


@pytest.mark.parametrize("release", ["2026", "a.b"])
def test_a_release_name_that_no_service_can_have_is_refused(release: str) -> None:
    with pytest.raises(helm.HelmError, match="cannot be the name of a Service"):
        render(release=release)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"setings": {}}, "additional properties 'setings' not allowed"),
        ({"settings": {"TORCHLANE_PORT": 8000}}, "got number, want string"),
        ({"settings": {"PORT": "8000"}}, "'PORT'"),
        ({"image": {"version": "1"}}, "additional properties 'version' not allowed"),
        ({"pod": []}, "got array, want object"),
    ],
)
def test_a_wrong_value_is_refused(values: Json, problem: str) -> None:
    with pytest.raises(helm.HelmError, match=problem):
        render(values)
