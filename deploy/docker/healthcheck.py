"""Health checks of the containers: exit code 0 and a word, or 1 and the reason.

    healthcheck.py ready          the server in this container can answer predictions
    healthcheck.py get URL        something answers 200 there
    healthcheck.py worker URL     this container's Locust worker is known to the master at URL

Uses only the standard library, so that `python -I -S` runs it in tens of milliseconds.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

TIMEOUT_S = 2.0
READY = "/health/ready"


class Unhealthy(Exception):
    """The reason, in a sentence."""


def check(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run one check.

    Returns:
        a word to show.

    Raises:
        Unhealthy: if it fails.
    """
    match arguments:
        case ["ready"]:
            _get(f"http://127.0.0.1:{environment.get('TORCHLANE_PORT', '8000')}{READY}")
            return "ready"
        case ["get", url]:
            _get(url)
            return "up"
        case ["worker", url]:
            return _worker(json.loads(_get(f"{url}/stats/requests")), socket.gethostname())
    raise Unhealthy(__doc__ or "")


def _worker(stats: Mapping[str, list[Mapping[str, str]]], host: str) -> str:
    """The state of this host's worker at the master; its id begins with the host name."""
    states = [worker["state"] for worker in stats["workers"] if worker["id"].startswith(host)]
    if not states:
        raise Unhealthy(f"the master knows no worker of {host}")
    # A restarted worker has a new id; the old one stays for a while as missing.
    present = [state for state in states if state != "missing"]
    if not present:
        raise Unhealthy(f"the master has lost the worker of {host}")
    return present[-1]


def _get(url: str) -> bytes:
    """The body of a 200; no proxy is used, because the checked servers are in this network."""
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
    """Print the result; returns the exit code."""
    try:
        sys.stdout.write(f"{check(arguments, environment)}\n")
    except Unhealthy as problem:
        sys.stdout.write(f"{problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
