"""What the shipped HAProxy does when DNS, its clients or its servers fail."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import grpc
import httpx
import pytest

from tests.docs.blocks import ROOT, blocks
from tests.e2e.balanced import balancing
from tests.e2e.fakes import Fake, faked
from tests.e2e.names import SERVFAIL
from tests.e2e.server import PLAIN, free_port
from tests.e2e.traffic import connected
from tests.integration.wire import ask_for

OUTAGE_S = 33.0  # HAProxy takes servers away after 30 s of failures, unless it is told otherwise
BODIES = 60
KEPT = 60  # connections of callers


@pytest.mark.soak
def test_a_dns_outage_removes_no_server(tmp_path: Path) -> None:
    with faked(tmp_path, 2) as found:
        found.names.failure = SERVFAIL
        time.sleep(OUTAGE_S)
        assert found.balancer.ready() == 2
        found.names.failure = 0
        found.names.addresses = found.names.addresses[:1]
        found.balancer.wait_ready(1)  # it listens to DNS again
        assert httpx.post(found.balancer.url, content=b"1", verify=PLAIN).status_code == 200


def test_requests_without_a_server_answer_are_logged(tmp_path: Path) -> None:
    with faked(tmp_path, 2) as found, httpx.Client(verify=PLAIN) as client:
        url, log = found.balancer.url, found.balancer.log_file
        before = log.read_text()
        for status in (200, 404, 500, 503):
            for fake in found.fakes:
                fake.status = status
            assert client.post(url, content=b"1").status_code == status
        for bad in (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"\0\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", found.balancer.port)) as sender:
                sender.sendall(bad)
                assert sender.recv(1000).startswith(b"HTTP/1.1 400 ")
        assert log.read_text() == before  # requests do not fill it
        seen = [each for fake in found.fakes for each in fake.seen]
        assert all(each["X-Request-Id"] for each in seen)

        for fake in found.fakes:
            fake.status = 0
        ids = []
        for given in ("mine-1", "odd one"):
            headers = {"X-Request-Id": given}
            answer = httpx.post(url, content=b"1", headers=headers, verify=PLAIN)
            told = answer.json()
            assert (answer.status_code, told["code"]) == (502, "server_lost")
            assert told["request_id"] == answer.headers["X-Request-Id"]
            ids.append(told["request_id"])
        assert ids[0] == "mine-1"
        assert ids[1] != "odd one"
        deadline = time.monotonic() + 20
        while len(lines := log.read_text().removeprefix(before).splitlines()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert [re.findall(r" (\d+) .* id=(\S+)", each) for each in lines] == [
            [("502", each)] for each in ids
        ]
        assert set(ids) <= {each["X-Request-Id"] for fake in found.fakes for each in fake.seen}


def test_admin_and_metrics_paths_are_blocked(tmp_path: Path) -> None:
    with faked(tmp_path, 1) as found, httpx.Client(verify=PLAIN) as client:

        def status(path: str, **headers: str) -> int:
            return client.get(f"{found.balancer.url}{path}", headers=headers).status_code

        blocked = ("/admin", "/admin/", "/admin/reload", "/%61dmin", "/metrics", "/metrics?x")
        for path in (*blocked, "/models/m/shadow", "/v2/repository/models/m/load"):
            assert status(path) == 404
        assert found.counts() == [0]
        for path in ("/administrator", "/metricsfoo", "/models/shadow", "/v2/repository/index"):
            assert status(path) == 200
        assert status("/models", **{"x-forwarded-for": "192.0.2.1"}) == 200
        assert found.fakes[0].seen[-1]["X-Forwarded-For"] == "192.0.2.1"
        many = {f"x-{number}": "1" for number in range(110)}
        assert status("/models", **many) == 431  # of the fake, which takes 100: it got them


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload"])
def test_grpc_calls_that_change_one_server_are_blocked(tmp_path: Path, method: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    with (
        faked(tmp_path, 1, grpc_bind=address, grpc_port=str(free_port())),
        grpc.insecure_channel(address) as channel,
    ):
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/inference.GRPCInferenceService/{method}"
        )
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", wait_for_ready=True, timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "call it at the address of that server" in str(caught.value.details())


def test_full_or_stopping_servers_hand_over_requests(tmp_path: Path) -> None:
    with faked(tmp_path, 3) as found, httpx.Client(verify=PLAIN) as client:
        full, stopping, free = found.fakes

        def ask(bodies: Iterable[int]) -> dict[int, httpx.Response]:
            url = found.balancer.url
            return {number: client.post(url, content=b"%d" % number) for number in bodies}

        def answering(host: str, answers: dict[int, httpx.Response]) -> list[int]:
            return [number for number, answer in answers.items() if answer.text == host]

        owned = answering(full.host, ask(range(BODIES)))
        full.status, before = 503, sum(found.counts())
        answers = ask(range(BODIES))
        assert {each.status_code for each in answers.values()} == {200}
        assert sum(found.counts()) - before == BODIES + len(owned)
        nexts = [each for each in answering(stopping.host, answers) if each in owned]

        stopping.status, before = 503, sum(found.counts())
        statuses = Counter(each.status_code for each in ask(range(BODIES)).values())
        assert statuses[503] > 0  # the third one is not reached by all
        assert sum(found.counts()) - before <= BODIES * 3

        stopping.shutdown()
        stopping.server_close()
        answers = ask(nexts)  # the first finds it out, on a connection that was used before
        assert {each.text for each in answers.values()} <= {full.host, free.host}
        assert answers[nexts[-1]].text == free.host


def test_the_connection_limit_leaves_room_for_probes(tmp_path: Path) -> None:
    with faked(tmp_path, 1, connections="4") as found, contextlib.ExitStack() as stack:
        for _ in range(8):
            address = ("127.0.0.1", found.balancer.port)
            held = stack.enter_context(socket.create_connection(address))
            held.sendall(b"GET / HTTP/1.1\r\n")  # and nothing more
        admin = f"http://127.0.0.1:{found.balancer.admin_port}"
        for path in ("/live", "/ready", "/metrics"):
            assert httpx.get(f"{admin}{path}", verify=PLAIN, timeout=20).status_code == 200


async def test_a_replaced_haproxy_loses_no_request(tmp_path: Path) -> None:
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


def test_a_plain_list_replaces_dns(tmp_path: Path) -> None:
    """With the command of docs/scaling.md: servers on ports of their own, without a name."""
    (command,) = [text for kind, text in blocks("docs/scaling.md") if text.startswith("awk ")]
    command, start = command.rsplit("\n", 2)[0], command.splitlines()[-1]
    assert start.endswith("haproxy -db -f haproxy.cfg")
    with contextlib.ExitStack() as stack:
        fakes = [stack.enter_context(Fake("127.0.0.1", free_port())) for _ in range(2)]
        for fake in fakes:
            threading.Thread(target=fake.serve_forever, args=(0.05,), daemon=True).start()
            stack.callback(fake.shutdown)
        listed = " ".join(f"127.0.0.1:{fake.server_port}" for fake in fakes)
        command = re.sub('list="[^"]+"', f'list="{listed}"', command)
        config = tmp_path / "haproxy.cfg"
        command = command.replace("> haproxy.cfg", f"> {shlex.quote(str(config))}")
        subprocess.run(["sh", "-ec", command], cwd=ROOT, check=True)
        balancer = stack.enter_context(balancing(tmp_path, config))
        balancer.wait_ready(2)
        for body in map(str, range(40)):
            for _ in range(2):
                assert httpx.post(balancer.url, content=body, verify=PLAIN).status_code == 200
        counts = [len(fake.seen) for fake in fakes]
    assert sum(counts) == 80
    assert min(counts) > 0
    assert all(count % 2 == 0 for count in counts)  # equal bodies go to the same server
