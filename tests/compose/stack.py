"""One stack of docker-compose.yml under a project name, image tag and ports of its own."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compose.engine import available, docker, inspect, prometheus_from_binaries
from tests.e2e.server import free_port

ROOT = Path(__file__).parents[2]
PROMETHEUS, GRAFANA = "prometheus", "grafana"
TAG = "test"
BASE_IMAGE = "python:3.11-slim-bookworm"
UP_LIMIT_S = 300
# A third of the default's time.
QUICK = ("--variants", "script,compiled", "--max-batch-size", "8", "--threads", "1")
PORTS = ("TORCHLANE_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT", "LOCUST_PORT")
PURE = "TORCHLANE_PURE"  # a variable: 1 builds a serving image without machine code
SECRET_MARK = "torchlane-test-secret-9f2c"  # tests are not in the images


@dataclass(frozen=True)
class Stack:
    """What `docker compose` is told in each of its calls.

    Attributes:
        environment: of the `docker` command, with the ports and the tag of this stack.
        project: compose's name for the stack.
        files: the compose files, in their order.
        left_out: services whose images cannot be had here.
        profiles: that are brought up.
    """

    environment: dict[str, str]
    project: str
    files: tuple[Path, ...]
    left_out: frozenset[str]
    profiles: tuple[str, ...] = ("load",)

    def compose(self, *arguments: str, limit_s: float = 600.0) -> str:
        """Run `docker compose ARGUMENTS`; returns its stdout."""
        return docker(*self._options(), *arguments, limit_s=limit_s, environment=self.environment)

    def _options(self) -> list[str]:
        chosen = [part for file in self.files for part in ("--file", str(file))]
        start = ["compose", "--project-directory", str(ROOT), "--project-name", self.project]
        profiles = [part for each in self.profiles for part in ("--profile", each)]
        return [*start, *chosen, *profiles, "--progress", "quiet"]

    def begin_up(self, *options: str) -> subprocess.Popen[str]:
        """Begin to bring everything up; the command ends when all is healthy, or has failed."""
        limit = ("--wait-timeout", str(UP_LIMIT_S))
        return self._begin("up", "--detach", "--wait", *limit, *options, stderr=subprocess.STDOUT)

    def down(self) -> None:
        """Remove containers, networks and volumes."""
        self.compose("down", "--volumes", "--timeout", "5")

    def start(self, service: str, *command: str) -> subprocess.Popen[str]:
        """Start a command in a running container; its stdin and stdout are pipes."""
        return self._begin("exec", "--no-TTY", service, *command)

    def _begin(self, *arguments: str, stderr: int | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["docker", *self._options(), *arguments],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def run_in(self, service: str, *command: str) -> str:
        """The stdout of a command in a running container."""
        return self.compose("exec", "--no-TTY", service, *command, limit_s=60)

    def containers(self) -> list[dict[str, Any]]:
        """What compose says of each container of the stack, ended ones too."""
        lines = self.compose("ps", "--all", "--format", "json").splitlines()
        return [json.loads(line) for line in lines]

    def inspect(self, service: str) -> Any:
        """What the engine knows of a service's first container."""
        return inspect(f"{self.project}-{service}-1")

    def url(self, variable: str) -> str:
        """Where a published port can be reached, by the variable that chose it."""
        return f"http://127.0.0.1:{self.environment[variable]}"


def stacks(folder: Path) -> Iterator[Stack]:
    """A stack that is built but not up; it is taken down in the end.

    Args:
        folder: for a file that leaves services out, and exports two variants.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHLANE_", "GF_"))}
    environment |= {name: str(free_port()) for name in PORTS} | {"TAG": TAG}
    environment[PURE] = os.environ.get(PURE, "0")
    environment["EXTRA_CA_FILE"] = str(_marked_certificates(folder / "certificates", environment))
    left_out = _left_out(environment)
    # A profile that nobody asks for keeps a service from being started.
    changed: dict[str, Any] = {name: {"profiles": ["needs-a-registry"]} for name in left_out}
    changed["export"] = {"command": [*_export_command(environment), *QUICK]}
    (folder / "changed.json").write_text(json.dumps({"services": changed}))
    files = (ROOT / "docker-compose.yml", folder / "changed.json")
    stack = Stack(environment, f"torchlane-test-{os.getpid()}", files, frozenset(left_out))
    try:
        stack.compose("build", limit_s=1800)
        yield stack
    finally:
        stack.down()


def _marked_certificates(file: Path, environment: Mapping[str, str]) -> Path:
    """What the build shall trust, and a line by which it would be found again."""
    given = environment.get("EXTRA_CA_FILE") or ssl.get_default_verify_paths().cafile
    text = Path(given).read_text() if given else ""
    file.write_text(f"{text}\n# {SECRET_MARK}\n")
    return file


def _left_out(environment: dict[str, str]) -> set[str]:
    """Services whose published images cannot be had; Prometheus may run from a package's binary."""
    images = _published_images(environment)
    missing = {service for service, image in images.items() if not available(image)}
    if PROMETHEUS in missing:
        base = environment.get("BASE_IMAGE", BASE_IMAGE)
        network = environment.get("BUILD_NETWORK", "default")
        stand_in = f"torchlane-prometheus:{TAG}"
        if prometheus_from_binaries(stand_in, base, network):
            environment["PROMETHEUS_IMAGE"] = stand_in
            missing.remove(PROMETHEUS)
        else:
            missing.add(GRAFANA)  # it starts after Prometheus
    return missing


def _published_images(environment: dict[str, str]) -> dict[str, str]:
    """Service -> image, of those that are not built here."""
    services = _services(environment).items()
    return {name: each["image"] for name, each in services if "build" not in each}


def _export_command(environment: dict[str, str]) -> list[str]:
    command: list[str] = _services(environment)["export"]["command"]
    return command


def _services(environment: dict[str, str]) -> dict[str, Any]:
    config = docker(
        *("compose", "--project-directory", str(ROOT), "config", "--format", "json"),
        environment=environment,
    )
    services: dict[str, Any] = json.loads(config)["services"]
    return services
