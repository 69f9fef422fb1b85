"""What `kubectl kustomize` makes of deploy/kubernetes, as objects that tests can look into."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

KUBERNETES = Path(__file__).parents[2] / "deploy/kubernetes"
POD_IP = "10.244.0.9"  # what a reference to the pod's address gives
# kubectl 1.27 brought kustomize 5, whose `patches` the overlay uses; the others build with any.
OVERLAY_MINOR = 27


@dataclass(frozen=True)
class Rendered:
    """Kubernetes objects, as `kubectl apply -k` would send them."""

    objects: tuple[dict[str, Any], ...]

    def parts(self, name: str) -> tuple[Rendered, Rendered]:
        """The objects with this `app.kubernetes.io/name`, and the others."""
        own = [each for each in self.objects if _name(each) == name]
        return Rendered(tuple(own)), Rendered(tuple(e for e in self.objects if e not in own))

    def one(self, kind: str) -> dict[str, Any]:
        """The only object of a kind."""
        (found,) = [each for each in self.objects if each["kind"] == kind]
        return found

    @property
    def pod(self) -> dict[str, Any]:
        """The spec of the Deployment's pods."""
        return dict(self.one("Deployment")["spec"]["template"]["spec"])

    @property
    def pod_metadata(self) -> dict[str, Any]:
        """Labels and annotations of the Deployment's pods."""
        return dict(self.one("Deployment")["spec"]["template"]["metadata"])

    @property
    def server(self) -> dict[str, Any]:
        """The container that serves."""
        (container,) = self.pod["containers"]
        return dict(container)

    @property
    def containers(self) -> list[dict[str, Any]]:
        """All that run in a pod, one after the other."""
        return [*self.pod.get("initContainers", ()), *self.pod["containers"]]

    @property
    def environment(self) -> dict[str, str]:
        """What the ConfigMap and the container put into the server's environment."""
        own = {each["name"]: each.get("value", POD_IP) for each in self.server.get("env", ())}
        own = {name: value.replace("$(POD_IP)", POD_IP) for name, value in own.items()}
        return {**self.one("ConfigMap")["data"], **own}


def _name(of: dict[str, Any]) -> str | None:
    label: str | None = of["metadata"].get("labels", {}).get("app.kubernetes.io/name")
    return label


@functools.cache
def build(folder: str, root: Path = KUBERNETES) -> Rendered:
    """The objects of the kustomization in root/folder; skips the test without a kubectl for it."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl on PATH, which builds the kustomizations")
    minor = _minor(kubectl)
    if folder.startswith("overlays/") and minor < OVERLAY_MINOR:
        pytest.skip(f"building {folder} needs kubectl 1.{OVERLAY_MINOR}; this is 1.{minor}")
    command = [kubectl, "kustomize", str(root / folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr, done.stderr
    return Rendered(tuple(yaml.safe_load_all(done.stdout)))


def _minor(kubectl: str) -> int:
    """It is kubectl 1.minor."""
    command = [kubectl, "version", "--client", "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    minor = re.match(r"\d+", json.loads(done.stdout)["clientVersion"]["minor"])  # or `32+`
    assert minor is not None, done.stdout
    return int(minor[0])
