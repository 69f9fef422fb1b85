"""A real process on real sockets: odd clients on the fast path, hundreds of requests, the stop."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.artifacts import write_artifact
from tests.e2e.server import Server, running
from tests.integration.wire import request

OPEN = "torchlane_requests_in_flight"
COUNTED = "torchlane_requests_total"
MAX_BODY_BYTES = 100_000
READY = request("/health/ready", b"", method="GET")
METRICS = request("/metrics", b"", method="GET")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("short")
    write_artifact(folder / "models", "double")
    settings = {"max_body_bytes": str(MAX_BODY_BYTES), "drain_s": "3"}
    with running(folder / "models", folder / "log", **settings) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.port) as made:
        yield made


class Client:
    """A blocking connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        status = int(self.file.readline().split()[1])
        headers = {}
        while line := self.file.readline().strip().decode("latin-1"):
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, self.file.read(int(headers["content-length"]))

    def abort(self) -> None:
        """Disconnect with a reset instead of a clean end."""
        linger = struct.pack("ii", 1, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.__exit__()


def ask_for(number: float, chunk_bytes: int | None = None) -> bytes:
    return request(body=b'{"input": [%r, 2]}' % number, chunk_bytes=chunk_bytes)


def doubled(number: float) -> bytes:
    return b'{"model":"double","version":1,"prediction":{"outputs":{"y":[%.1f,4.0]}}}' % (
        2 * number
    )


@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_byte_by_byte(client: Client, chunk_bytes: int | None) -> None:
    for number in (1, 2):
        for byte in ask_for(number, chunk_bytes):
            client.send(bytes([byte]))
        assert client.answer()[::2] == (200, doubled(number))


def test_hundreds_at_once_and_one_by_one(client: Client, server: Server) -> None:
    before = server.metric(COUNTED)
    client.send(b"".join(ask_for(n % 40) + (READY if n % 7 == 0 else b"") for n in range(200)))
    for n in range(200):
        assert client.answer()[::2] == (200, doubled(n % 40))
        if n % 7 == 0:
            assert b'"ready"' in client.answer()[2]
    for n in range(200):
        other = READY if n % 2 else METRICS
        client.send(ask_for(n % 40 + 0.5))
        assert client.answer()[::2] == (200, doubled(n % 40 + 0.5))
        client.send(other)
        assert client.answer()[0] == 200
    assert server.metric(COUNTED) - before == 400


def test_too_large_by_its_head_and_while_it_comes(client: Client) -> None:
    body = b" " * (MAX_BODY_BYTES + 1)
    for data in (request(body=body), request(body=body, chunk_bytes=10_000)):
        client.send(data)
        assert client.answer()[0] == 413
        client.send(ask_for(3))
        assert client.answer()[::2] == (200, doubled(3))


def test_clients_that_go_away_leave_nothing_behind(server: Server) -> None:
    rng = random.Random(7)
    before = server.metric(COUNTED)
    for number in range(150):
        data = ask_for(number % 40 + rng.random(), rng.choice([None, 3]))
        gone = Client(server.port)
        gone.send(data[: rng.randrange(1, len(data))] if number % 2 else data + data)
        gone.abort() if number % 3 else gone.__exit__()
    server.wait_for_metric(OPEN, lambda left: left == 0)
    assert server.metric(COUNTED) > before
    assert server.metric("torchlane_queue_depth_items") == 0
    with Client(server.port) as good:
        good.send(ask_for(3))
        assert good.answer()[::2] == (200, doubled(3))


def test_garbage_harms_nobody(server: Server, client: Client) -> None:
    rng = random.Random(11)
    for number in range(150):
        data = bytearray(ask_for(number % 40, rng.choice([None, 5])))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with Client(server.port) as odd:
            odd.send(bytes(data) if number % 5 else rng.randbytes(100))
            client.send(ask_for(number % 40))
            assert client.answer()[::2] == (200, doubled(number % 40))
    server.wait_for_metric(OPEN, lambda left: left == 0)


def test_the_log_knows_of_no_mishap(server: Server) -> None:
    for word in ("Traceback", "unhandled_error", "Fatal error", "caller_not_told", "Exception"):
        assert word not in server.log


def test_a_stop_answers_partial_requests_and_closes_idle_connections(server: Server) -> None:
    with Client(server.port) as idle, Client(server.port) as half, Client(server.port) as late:
        for each in (idle, half, late):
            each.send(ask_for(3))
            assert each.answer()[0] == 200
        half.send(ask_for(4, 5)[:-12])
        late.send(ask_for(5)[:-12])
        server.wait_for_metric(OPEN, lambda count: count == 2)
        server.signal()
        time.sleep(0.2)
        late.send(ask_for(5)[-12:])
        for client in (late, half):
            status, headers, body = client.answer()
            assert (status, headers["connection"]) == (503, "close")
            assert b"shutting_down" in body
            assert client.file.read() == b""
        assert idle.file.read() == b""
        assert server.exit_code() == 0
    test_the_log_knows_of_no_mishap(server)
