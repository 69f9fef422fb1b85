"""The container engine that answers here, spoken to through the `docker` command."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PULL_LIMIT_S = 120.0
# The ordinary image's entrypoint and user; what runs is the binary of a distribution's package.
PROMETHEUS = """\
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY prometheus promtool /bin/
RUN install -d -o 65534 -g 65534 /prometheus
USER 65534
ENTRYPOINT ["/bin/prometheus"]
"""

# As the published image of alpine: the user, `wget` for the health check, SIGUSR1 for a soft stop.
HAPROXY = """\
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends haproxy wget
USER 99
STOPSIGNAL SIGUSR1
"""


class EngineError(Exception):
    """A command of the engine failed; the message holds what it wrote."""


def docker(
    *arguments: str, limit_s: float = 600.0, environment: Mapping[str, str] | None = None
) -> str:
    """Run `docker ARGUMENTS`; returns its stdout.

    Raises:
        EngineError: at another exit code than 0.
    """
    done = subprocess.run(
        ["docker", *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        env=environment,
        check=False,
    )
    if done.returncode:
        command = " ".join(arguments)
        raise EngineError(f"docker {command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def inspect(what: str) -> Any:
    """What the engine knows of an image or container."""
    return json.loads(docker("inspect", what))[0]


@functools.cache
def why_no_engine() -> str | None:
    """The reason why containers cannot be run here; None where they can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    try:
        docker("info", limit_s=30)
        docker("compose", "version", limit_s=30)
    except (EngineError, subprocess.TimeoutExpired) as error:
        return f"no container engine with compose answers: {str(error).strip().splitlines()[-1]}"
    return None


def available(image: str) -> bool:
    """Whether the engine has an image, or can pull it."""
    for command in (("image", "inspect", image), ("pull", "--quiet", image)):
        with contextlib.suppress(EngineError, subprocess.TimeoutExpired):
            docker(*command, limit_s=PULL_LIMIT_S)
            return True
    return False


def haproxy_from_package(tag: str, base_image: str, network: str) -> None:
    """Make an image of the distribution's HAProxy."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text(HAPROXY)
        options: Sequence[str] = ("--build-arg", f"BASE_IMAGE={base_image}", "--network", network)
        docker("build", "--quiet", "--tag", tag, *options, folder)


def prometheus_from_binaries(tag: str, base_image: str, network: str) -> bool:
    """Make an image of the `prometheus` and `promtool` of this machine; whether there are any."""
    binaries = [shutil.which(name) for name in ("prometheus", "promtool")]
    with tempfile.TemporaryDirectory() as folder:
        for binary in binaries:
            if binary is None:
                return False
            shutil.copy(binary, folder)
        (Path(folder) / "Dockerfile").write_text(PROMETHEUS)
        options: Sequence[str] = ("--build-arg", f"BASE_IMAGE={base_image}", "--network", network)
        docker("build", "--quiet", "--tag", tag, *options, folder)
    return True
