"""A real server and a real Redis under load: what a restart keeps, and what a paused Redis costs.

Figures are printed: `pytest -m soak -s tests/e2e/test_shared_cache.py`.
"""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtests.capacity.linear import linear_artifact
from tests.e2e.server import Server, running
from tests.redis_server import RedisServer, needs_redis

pytestmark = [needs_redis, pytest.mark.soak, pytest.mark.timeout(600)]
ITEM_MS = 5.0
BUDGET_MS = 5.0
RESULTS = re.compile(r'torchlane_shared_cache_lookups_total\{.*result="(\w+)".*\} (\S+)')


class Connection:
    """Sends one request after the other; says what the header tells of the cache."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, number: float) -> str:
        body = json.dumps({"input": [number, 0.5]}).encode()
        self._socket.sendall(
            b"POST /predict HTTP/1.1\r\nHost: loopback\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._read()
        head, _, content = received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        while len(content) < int(length.group(1)):
            content += self._read()
        assert head.startswith(b"HTTP/1.1 200"), received
        first = json.loads(content)["prediction"]["outputs"]["output"][0]
        assert first == pytest.approx(2 * number, rel=1e-5)
        said = re.search(rb"x-torchlane-cache: (\w+)", head)
        assert said is not None
        return said.group(1).decode()

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 16)
        assert data, "the server closed the connection"
        return data


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return linear_artifact(folder, ITEM_MS).parents[1]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.stop()


@contextmanager
def serving(models: Path, log: Path, url: str) -> Iterator[Server]:
    settings = {"cache_url": url} if url else {}
    with running(models, log, cache_budget_ms=str(BUDGET_MS), **settings) as server:
        if url:
            server.wait_for_metric("torchlane_shared_cache_seconds_count", lambda seen: seen > 9)
            server.wait_for_metric("torchlane_shared_cache_open", lambda seen: seen == 0)
        yield server


def say(text: str) -> None:
    sys.stdout.write(f"\n{text}")


def results(server: Server) -> dict[str, float]:
    found = (RESULTS.match(line) for line in server.scrape())
    return {each.group(1): float(each.group(2)) for each in found if each is not None}


def times_ms(server: Server, count: int) -> tuple[list[str], list[float]]:
    """The answer and the time of each of a number of different requests, one after the other."""
    connection, said, took_ms = Connection(server.port), [], []
    for number in range(count):
        began = time.perf_counter()
        said.append(connection.ask(number))
        took_ms.append((time.perf_counter() - began) * 1000)
    connection.close()
    return said, took_ms


def test_hits_survive_a_restart_and_are_fast(
    models: Path, redis: RedisServer, tmp_path: Path
) -> None:
    count = 300
    with serving(models, tmp_path / "first", redis.url) as server:
        _, computed = times_ms(server, count)
        server.wait_for_metric("torchlane_shared_cache_writes_total", lambda seen: seen >= count)
        server.signal()
        assert server.exit_code() == 0
    with serving(models, tmp_path / "second", redis.url) as server:
        said, found = times_ms(server, count)
        _, local = times_ms(server, count)
        of_each = results(server)
        computed_again = server.metric("torchlane_items_computed_total")
    kinds = {"computed": computed, "found in Redis": found, "in the own cache": local}
    for name, took in kinds.items():
        say(f"{name}: p50 {statistics.median(took):.2f} ms, p99 {p99(took):.2f} ms")
    say(f"after the restart: {of_each}, computed {computed_again:.0f} of {count}")
    assert said.count("hit") >= 0.95 * count  # a busy machine misses the budget now and then
    assert said.count("hit") + computed_again == count
    assert statistics.median(found) <= 1.0


class Load:
    """Requests that are due at a steady rate, all different, each on time or late."""

    def __init__(self, port: int, rate: float, threads: int = 8) -> None:
        self.took_ms: list[tuple[float, float]] = []  # when it was due, and how long until done
        self._stop = threading.Event()
        self._port, self._threads = port, []
        self.failures: list[BaseException] = []
        for index in range(threads):
            thread = threading.Thread(target=self._run, args=(index, threads / rate))
            self._threads.append(thread)
            thread.start()

    def between(self, began: float, ended: float) -> list[float]:
        return [took for due, took in self.took_ms if began <= due < ended]

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures, self.failures

    def _run(self, index: int, every_s: float) -> None:
        try:
            connection, number = Connection(self._port), index * 1e5
            due = time.monotonic() + every_s * index / 8
            while not self._stop.is_set():
                time.sleep(max(0.0, due - time.monotonic()))
                connection.ask(number)
                self.took_ms.append((due, (time.monotonic() - due) * 1000))
                number, due = number + 1, due + every_s
            connection.close()
        except BaseException as error:
            self.failures.append(error)


def p99(took_ms: list[float]) -> float:
    return statistics.quantiles(took_ms, n=100)[98]


def test_a_paused_redis_opens_the_breaker(models: Path, redis: RedisServer, tmp_path: Path) -> None:
    phase_s = 10.0
    with serving(models, tmp_path / "log", redis.url) as server:
        load = Load(server.port, rate=40)
        time.sleep(2)
        marks = [time.monotonic()]
        time.sleep(phase_s)
        earlier = results(server)
        marks.append(time.monotonic())
        redis.pause()
        server.wait_for_metric("torchlane_shared_cache_open", lambda seen: seen == 1)
        opened_s = time.monotonic() - marks[-1]
        time.sleep(phase_s)
        timeouts = results(server).get("timeout", 0) - earlier.get("timeout", 0)
        marks.append(time.monotonic())
        redis.go_on()
        server.wait_for_metric("torchlane_shared_cache_open", lambda seen: seen == 0)
        closed_s = time.monotonic() - marks[-1]
        time.sleep(phase_s / 2)
        marks.append(time.monotonic())
        load.close()
        log = [line for line in server.log.splitlines() if "shared_cache" in line]
        found = results(server)
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    before, paused, after = (load.between(*each) for each in itertools.pairwise(marks))
    for name, took in (("before", before), ("paused", paused), ("after", after)):
        middle = statistics.median(took)
        say(f"{name}: {len(took)} requests, p50 {middle:.2f} ms, p99 {p99(took):.2f} ms")
    say(f"opened after {opened_s:.2f} s and {timeouts:.0f} late answers")
    say(f"closed {closed_s:.2f} s after SIGCONT; {found}")
    say("\n".join(log))
    assert timeouts <= 5 + 8  # as many as may be asked at the same time
    assert len(log) <= 12  # there, gone and back, for reading and writing; twice if it is busy
    assert found["miss"] > 0
    assert p99(paused) <= p99(before) * 1.5 + BUDGET_MS + 5.0  # what a busy machine adds
