"""What the shipped HAProxy does when DNS, its clients or its servers fail."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.e2e.fakes import faked
from tests.e2e.names import SERVFAIL
from tests.e2e.server import PLAIN
from tests.e2e.traffic import connected
from tests.integration.wire import ask_for

OUTAGE_S = 33.0  # HAProxy takes servers away after 30 s of failures, unless it is told otherwise
BODIES = 60
KEPT = 60  # connections of callers


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


def test_what_is_full_is_asked_once_and_one_other(tmp_path: Path) -> None:
    with faked(tmp_path, 3) as found, httpx.Client(verify=PLAIN) as client:

        def ask(bodies: range) -> Counter[int]:
            contents = (b"%d" % number for number in bodies)
            url = found.balancer.url
            return Counter(client.post(url, content=each).status_code for each in contents)

        found.fakes[0].status = 503
        assert ask(range(BODIES)) == {200: BODIES}
        asked = sum(found.counts())
        assert asked == BODIES + found.counts()[0]
        found.fakes[1].status = 503
        statuses = ask(range(BODIES))
        assert statuses[503] > 0
        assert sum(found.counts()) - asked <= 2 * BODIES


def test_clients_at_their_limit_leave_room_for_probes(tmp_path: Path) -> None:
    with faked(tmp_path, 1, connections="4") as found, contextlib.ExitStack() as stack:
        for _ in range(8):
            address = ("127.0.0.1", found.balancer.port)
            held = stack.enter_context(socket.create_connection(address))
            held.sendall(b"GET / HTTP/1.1\r\n")  # and nothing more
        admin = f"http://127.0.0.1:{found.balancer.admin_port}"
        for path in ("/live", "/ready", "/metrics"):
            assert httpx.get(f"{admin}{path}", verify=PLAIN, timeout=2).status_code == 200


async def test_one_that_is_replaced_loses_no_request_of_kept_connections(tmp_path: Path) -> None:
    """Callers keep their connections, and pause between requests, as pools of clients do."""
    with faked(tmp_path, 2) as found:

        async def call() -> int:
            async with connected(found.balancer.port) as wire:
                for number in itertools.count():
                    try:
                        answer = await wire.ask(ask_for(number))
                    except (EOFError, ConnectionError):
                        return 1
                    assert answer.status == 200
                    if "connection" in answer.names:
                        return 0
                    await asyncio.sleep(0.05)
            return 0

        callers = [asyncio.create_task(call()) for _ in range(KEPT)]
        await asyncio.sleep(0.3)
        found.balancer.process.send_signal(signal.SIGUSR1)
        lost = sum(await asyncio.gather(*callers))
        assert lost == 0
        assert await asyncio.to_thread(found.balancer.process.wait, 20) == 0
