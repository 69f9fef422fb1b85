"""Attacks through a real HAProxy and a real nginx that keep connections to the server alive.

HAProxy has the configuration that is shipped, and finds the server by DNS.

Whatever a proxy passes on, two clients behind it must never get each other's answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.artifacts import write_artifact
from tests.e2e.balanced import SHIPPED, balancing
from tests.e2e.names import naming
from tests.e2e.server import Server, free_port, running
from tests.http.rules import FRAMING, RULES
from tests.integration.wire import Wire, ask_for, request

NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream back {{ server 127.0.0.1:{server}; keepalive 1; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://back;
            proxy_http_version 1.1;
            proxy_request_buffering {buffering};
            proxy_set_header Host $host;
            proxy_set_header Connection $http_connection;
            proxy_set_header Upgrade $http_upgrade;
        }}
    }}
}}
"""
NGINX_FORMS = {"nginx": "on", "nginx, streaming": "off"}  # whether it buffers requests
SHIPPED_FORM = "haproxy, shipped"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("behind")
    write_artifact(folder / "models", "double")
    with running(folder / "models", folder / "log") as made:
        yield made


def one_connection(shipped: str) -> str:
    """The shipped configuration, where all clients share one connection to the server."""
    checked = "    default-server check "
    assert shipped.count(checked) == 1
    return shipped.replace(
        checked, f"    http-reuse always\n{checked}maxconn 1 pool-max-conn 1 pool-low-conn 1 "
    )


@pytest.fixture(scope="module", params=[*NGINX_FORMS, SHIPPED_FORM])
def proxy(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The port of a running proxy."""
    if request.param == SHIPPED_FORM:
        yield from shipped(server, tmp_path_factory.mktemp("shipped"))
        return
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None:
        pytest.skip("nginx is not installed")
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    settings = {"port": port, "server": server.port, "folder": folder}
    settings["buffering"] = NGINX_FORMS[request.param]
    (folder / "conf").write_text(NGINX.format(**settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "-c", str(folder / "conf")], stdout=log, stderr=log)
    try:
        _wait(process, port, folder / "log")
        yield port
    finally:
        process.terminate()
        process.wait(10)


def shipped(server: Server, folder: Path) -> Iterator[int]:
    """The port of an HAProxy with the shipped configuration before one server."""
    config = folder / "conf"
    config.write_text(one_connection(SHIPPED.read_text()))
    with naming([server.host]) as names:
        settings = {"nameserver": f"127.0.0.1:{names.port}", "server_port": str(server.port)}
        with balancing(folder, config, **settings) as balancer:
            balancer.wait_ready(1)
            yield balancer.port


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(200):
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError("the proxy does not listen")


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Wire]:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield wire
    finally:
        await wire.close()


async def ask_honestly(port: int, number: int) -> None:
    """A client of its own gets its own answer."""
    async with connected(port) as wire:
        answer = await wire.ask(ask_for(number, x_request_id=f"honest-{number}"))
        assert (answer.status, answer["x-request-id"]) == (200, f"honest-{number}")
        assert answer.json()["prediction"] == {"outputs": {"y": [2.0 * number, 4]}}


@pytest.mark.parametrize("name", FRAMING)
async def test_no_client_gets_anothers_answer(proxy: int, name: str) -> None:
    """The proxy has one connection to the server, which the next client's request uses."""
    rule = RULES[name]
    async with connected(proxy) as attacker:
        for piece in rule.sent:
            attacker.send(piece)
            await asyncio.sleep(0.01)
        for number in (20, 21, 22):
            await ask_honestly(proxy, number)


async def test_requests_through_a_proxy_are_answered(proxy: int) -> None:
    """The proxies work: predictions, large and in chunks, and many on one connection."""
    async with connected(proxy) as wire:
        for number in range(30):
            answer = await wire.ask(ask_for(number, chunk_bytes=5 if number % 2 else None))
            assert answer.status == 200, (number, answer.json())
            assert answer.json()["prediction"] == {"outputs": {"y": [2.0 * number, 4]}}
        large = request(body=b'{"input": [3, 2]}' + b" " * 500_000)
        assert (await wire.ask(large)).json()["prediction"] == {"outputs": {"y": [6, 4]}}
