"""What the shipped HAProxy does when DNS, its clients or its servers fail."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.fakes import faked
from tests.e2e.names import SERVFAIL
from tests.e2e.server import PLAIN

OUTAGE_S = 33.0  # HAProxy takes servers away after 30 s of failures, unless it is told otherwise


@pytest.mark.soak
def test_an_outage_of_dns_takes_no_server_away(tmp_path: Path) -> None:
    with faked(tmp_path, 2) as found:
        found.names.failure = SERVFAIL
        time.sleep(OUTAGE_S)
        assert found.balancer.ready() == 2
        found.names.failure = 0
        found.names.addresses = found.names.addresses[:1]
        found.balancer.wait_ready(1)  # it listens to DNS again
        assert httpx.post(found.balancer.url, content=b"1", verify=PLAIN).status_code == 200


def test_clients_at_their_limit_leave_room_for_probes(tmp_path: Path) -> None:
    with faked(tmp_path, 1, connections="4") as found, contextlib.ExitStack() as stack:
        for _ in range(8):
            address = ("127.0.0.1", found.balancer.port)
            held = stack.enter_context(socket.create_connection(address))
            held.sendall(b"GET / HTTP/1.1\r\n")  # and nothing more
        admin = f"http://127.0.0.1:{found.balancer.admin_port}"
        for path in ("/live", "/ready", "/metrics"):
            assert httpx.get(f"{admin}{path}", verify=PLAIN, timeout=2).status_code == 200
