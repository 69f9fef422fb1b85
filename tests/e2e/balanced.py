"""A real HAProxy with the shipped configuration before real servers, which it finds by DNS."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.e2e.names import Names, naming
from tests.e2e.server import PLAIN, Server, free_port, running

SHIPPED = Path(__file__).parents[2] / "deploy/haproxy/haproxy.cfg"
PLACES = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
START_LIMIT_S = 20.0
COMPUTED = "torchlane_items_computed_total"
KEPT_S = "3600"  # TORCHLANE_KEEP_ALIVE_S behind a balancer, as the shipped files set it


@dataclass(frozen=True)
class Balancer:
    """A running HAProxy.

    Attributes:
        port: where clients connect.
        admin_port: where its metrics are.
    """

    process: subprocess.Popen[bytes]
    port: int
    admin_port: int
    log_file: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ready(self) -> int:
        """How many servers it sends requests to."""
        text = httpx.get(f"http://127.0.0.1:{self.admin_port}/metrics", verify=PLAIN).text
        wanted = 'haproxy_backend_active_servers{proxy="servers"} '
        (line,) = [each for each in text.splitlines() if each.startswith(wanted)]
        return int(float(line.removeprefix(wanted)))

    def wait_ready(self, servers: int) -> None:
        """Return once it sends requests to that many servers."""
        deadline = time.monotonic() + START_LIMIT_S
        while (found := self.ready()) != servers:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{found} of {servers} are ready: {self.log_file.read_text()}")
            time.sleep(0.02)


@dataclass(frozen=True)
class Cluster:
    """Servers, each at an address of its own, and what stands before them."""

    balancer: Balancer
    servers: Sequence[Server]
    names: Names

    def computed(self) -> list[int]:
        """Items that each server has computed; those that have ended are left out."""
        return [int(each.metric(COMPUTED)) for each in self.servers if each.process.poll() is None]


def in_turns(shipped: str) -> str:
    """The shipped configuration, but round robin."""
    hashing = shipped[shipped.index("    balance hash") : shipped.index("    option httpchk")]
    return shipped.replace(hashing, "    balance roundrobin\n")


def haproxy() -> str:
    """The program; skips the test where there is none."""
    program = shutil.which("haproxy", path=PLACES)
    if program is None:
        pytest.skip("haproxy is not installed")
    return program


@contextlib.contextmanager
def balancing(folder: Path, config: Path = SHIPPED, **settings: str) -> Iterator[Balancer]:
    """An HAProxy with BALANCER_ settings; ended by its process id."""
    port, admin_port, log_file = free_port(), free_port(), folder / "log.haproxy"
    ours = {"bind": f"127.0.0.1:{port}", "admin_bind": f"127.0.0.1:{admin_port}"}
    given = {f"BALANCER_{name.upper()}": value for name, value in (ours | settings).items()}
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [haproxy(), "-db", "-f", str(config)],
            stdout=log,
            stderr=log,
            env={"PATH": os.environ["PATH"]} | given,
        )
    try:
        _wait(process, port, log_file)
        yield Balancer(process, port, admin_port, log_file)
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log_file: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"HAProxy does not listen:\n{log_file.read_text()}")


@contextlib.contextmanager
def cluster(
    models: Path,
    folder: Path,
    count: int = 3,
    *,
    module: str = "app",
    server: Mapping[str, str] | None = None,
    balancer: Mapping[str, str] | None = None,
    change: Callable[[str], str] | None = None,
) -> Iterator[Cluster]:
    """Ready servers at 127.0.0.1, 127.0.0.2 and so on, and an HAProxy that has found all of them.

    Args:
        models: the repository of the servers.
        folder: for logs.
        count: of servers.
        module: that they run.
        server: their settings.
        balancer: its settings.
        change: makes another configuration of the shipped one.
    """
    addresses = [f"127.0.0.{number}" for number in range(1, count + 1)]
    port = str(free_port())
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                running(
                    models,
                    folder / f"log.{address}",
                    module,
                    **{"keep_alive_s": KEPT_S, **(server or {}), "host": address, "port": port},
                )
            )
            for address in addresses
        ]
        names = stack.enter_context(naming(addresses))
        config = SHIPPED
        if change is not None:
            config = folder / "haproxy.cfg"
            config.write_text(change(SHIPPED.read_text()))
        found = {"nameserver": f"127.0.0.1:{names.port}", "server_port": port, "slots": "8"}
        made = stack.enter_context(balancing(folder, config, **{**found, **(balancer or {})}))
        made.wait_ready(count)
        yield Cluster(made, servers, names)
