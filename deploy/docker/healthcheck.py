"""Health checks of the containers: exit code 0 with a word, or 1 with the reason.

    healthcheck.py ready          whether the server in this container can answer predictions
    healthcheck.py get URL        whether URL answers 200
    healthcheck.py worker URL     whether the master at URL knows this container's Locust worker

Uses only the standard library, so that `python -I -S` runs it in tens of milliseconds.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

TIMEOUT_S = 2.0
READY = "/health/ready"
SAGEMAKER_MODELS = Path("/opt/ml/model")
FIRST_PROCESS = Path("/proc/1/cmdline")


class Unhealthy(Exception):
    """The check failed; the message is the reason."""


def check(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run one check.

    Returns:
        a word to print.

    Raises:
        Unhealthy: if it fails.
    """
    match arguments:
        case ["ready"]:
            _get(f"http://127.0.0.1:{port_of(environment)}{READY}")
            return "ready"
        case ["get", url]:
            _get(url)
            return "up"
        case ["worker", url]:
            stats = _get(url.rstrip("/") + "/stats/requests")
            return _worker(json.loads(stats), socket.gethostname())
    raise Unhealthy(__doc__ or "")


def port_of(
    environment: Mapping[str, str], models: Path = SAGEMAKER_MODELS, first: Path = FIRST_PROCESS
) -> str:
    """Return the server's port, which hosting platforms choose: see app/hosting.py."""
    if port := environment.get("AIP_HTTP_PORT"):
        return port
    if models.is_dir():
        port = environment.get("SAGEMAKER_BIND_TO_PORT")
        if port or first.read_bytes().endswith(b"\0--\0serve\0"):
            return port or "8080"
    return environment.get("TORCHLANE_PORT", "8000")


def _worker(stats: Mapping[str, list[Mapping[str, str]]], host: str) -> str:
    """Return the master's state for this host's worker, whose id begins with the host name."""
    states = [worker["state"] for worker in stats["workers"] if worker["id"].startswith(host)]
    if not states:
        raise Unhealthy(f"the master knows no worker of {host}")
    # A restarted worker has a new id; the old one is listed as missing for a while.
    present = [state for state in states if state != "missing"]
    if not present:
        raise Unhealthy(f"the master has lost the worker of {host}")
    return present[-1]


def _get(url: str) -> bytes:
    """Return the body of a 200; uses no proxy, because the checked servers are in this network."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path or "/")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Unhealthy(f"{url}: {error}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise Unhealthy(f"{url}: {response.status} {body[:500].decode(errors='replace')}")
    return body


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Print the result; return the exit code."""
    try:
        sys.stdout.write(f"{check(arguments, environment)}\n")
    except Unhealthy as problem:
        sys.stdout.write(f"{problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
