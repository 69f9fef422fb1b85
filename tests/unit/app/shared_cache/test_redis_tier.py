"""The second cache over a connection, and what it makes of servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from app.engine.shared_tier import Found, NotFound
from app.metrics import Metrics
from app.shared_cache import breaker, link, redis_tier
from app.shared_cache.address import Address
from app.shared_cache.envelope import encode
from app.shared_cache.redis_tier import RedisTier
from app.types import Arrays
from tests.redis_server import soon
from tests.unit.app.shared_cache.scripted_server import ScriptedServer, right, scripted_server

SECRET = "hunter2"
BUDGET_S = 0.5  # for a busy machine
KEY, OTHER = bytes(32), bytes(range(32))
VALUE: Arrays = {"y": np.ones(2, np.float32)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(breaker, "MOST_PAUSE_S", 0.02)
    monkeypatch.setattr(breaker, "LOOK_S", 0.02)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ScriptedServer]:
    async with scripted_server(tmp_path) as made:
        yield made


class Running:
    def __init__(self, tier: RedisTier, metrics: Metrics) -> None:
        self.tier = tier
        self.metrics = metrics

    async def find(self, *keys: bytes) -> Sequence[Found]:
        answered: asyncio.Future[Sequence[Found]] = asyncio.get_running_loop().create_future()
        self.tier.find(keys, answered.set_result)
        return await asyncio.wait_for(answered, 30)

    def writes(self, result: str) -> float:
        self.metrics.close()
        name = "torchlane_shared_cache_writes_total"
        return self.metrics.registry.get_sample_value(name, {"result": result}) or 0.0

    async def closed(self) -> None:
        await soon(lambda: not self.tier.is_open)


@contextlib.asynccontextmanager
async def running(path: Path, *, login: str = "", ttl_s: float = 60) -> AsyncIterator[Running]:
    metrics = Metrics()
    address = Address(f"unix://{login}{path}")
    tier = RedisTier(address, metrics, budget_s=BUDGET_S, ttl_s=ttl_s)
    tier.start()
    try:
        yield Running(tier, metrics)
    finally:
        await tier.close()


async def test_find_reports_hits_and_misses(server: ScriptedServer) -> None:
    data = encode(KEY, VALUE)
    assert data is not None

    def script(command: list[bytes]) -> bytes:
        has = command[1:] == [b"torchlane:" + KEY, b"torchlane:" + OTHER]
        return b"*2\r\n$%d\r\n%b\r\n$-1\r\n" % (len(data), data) if has else right(command)

    server.script = script
    async with running(server.path) as r:
        assert r.tier.round_trip_s == float("inf")
        await r.closed()
        found, missing = await r.find(KEY, OTHER)
        assert not isinstance(found, NotFound)
        assert found["y"].tolist() == [1, 1]
        assert missing is NotFound.MISS
        assert 0 < r.tier.round_trip_s < BUDGET_S


async def test_values_are_stored_with_a_lifetime(server: ScriptedServer) -> None:
    async with running(server.path, ttl_s=1.5) as r:
        await r.closed()
        await soon(lambda: server.count(b"SET") > 0)  # the probe
        r.tier.keep(KEY, VALUE)
        r.tier.keep(OTHER, VALUE)
        await soon(lambda: len(server.written) == 2)
        assert server.written[0] == [
            b"SET",
            b"torchlane:" + KEY,
            encode(KEY, VALUE),
            b"PX",
            b"1500",
        ]
        await soon(lambda: r.writes("stored") == 2)


async def test_dropped_writes_are_counted(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_tier, "MOST_WAITING", 2)
    async with running(server.path) as r:
        r.tier.keep(KEY, VALUE)  # not connected yet
        await r.closed()
        await soon(lambda: server.count(b"SET") > 0)
        await asyncio.sleep(0.01)
        for _ in range(5):
            r.tier.keep(KEY, VALUE)
        r.tier.keep(KEY, {"y": np.zeros(1 << 21, np.uint8)})
        assert r.writes("dropped") == 1 + 3 + 1
        await soon(lambda: r.writes("stored") == 2)


async def test_unanswered_writes_are_limited(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "LOOK_S", 0.2)  # until a probe fails, and all are sent
    async with running(server.path) as r:
        await r.closed()
        await soon(lambda: server.count(b"SET") > 0)
        await asyncio.sleep(0.01)
        server.script = lambda command: None if command[0] == b"SET" else right(command)
        before = server.count(b"SET")
        for _ in range(10):
            r.tier.keep(KEY, VALUE)
            await asyncio.sleep(0.001)
        await soon(lambda: server.count(b"SET") - before == redis_tier.MOST_PIPELINES)
        sent = len(server.written)  # the others are probes
        await soon(lambda: r.writes("error") == sent)  # it was given up
        assert r.writes("dropped") == 10 - sent  # and nothing waits for it
        assert not r.tier.is_open  # for queries


def never(_: list[bytes]) -> bytes | None:
    return None


def refuses(command: list[bytes]) -> bytes:
    return b"-NOPERM no rights: %b\r\n" % b" ".join(command)


def odd(_: list[bytes]) -> bytes:
    return b":1\r\n"


def short(command: list[bytes]) -> bytes:
    return b"*1\r\n$-1\r\n" if command[0] == b"MGET" and len(command) > 2 else right(command)


def http(_: list[bytes]) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\n\r\n"


def chatty(command: list[bytes]) -> bytes:
    return right(command) + right(command)


def endless(command: list[bytes]) -> bytes:
    return b"*2\r\n$5000000000\r\n" + bytes(3000)


def times_opened(logs: Sequence[Mapping[str, object]]) -> int:
    return sum((each["event"], each["use"]) == ("shared_cache_open", "read") for each in logs)


@pytest.mark.parametrize("script", [never, refuses, odd, short, http, chatty, endless])
async def test_failing_server_loses_only_the_answer(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, script: Callable[[list[bytes]], bytes]
) -> None:
    monkeypatch.setattr(link, "MOST_REPLY_BYTES", 2000)
    monkeypatch.setattr(breaker, "CONNECT_S", 0.1)
    with capture_logs() as logs:
        async with running(server.path, login=f"me:{SECRET}@") as r:
            await r.closed()
            server.script = script
            while not r.tier.is_open:
                answers: list[Sequence[Found]] = []
                give_up = r.tier.find([KEY, OTHER], answers.append)
                await asyncio.sleep(0.005)
                give_up()
                assert all(isinstance(each, NotFound) for found in answers for each in found)
            assert await r.find(KEY) == [NotFound.OPEN]
            connections, opened = server.connections, times_opened(logs)
            if script is not short:  # which probes do not notice
                await soon(lambda: server.connections > connections + 2)
                assert r.tier.is_open
                assert times_opened(logs) == opened  # however often it was tried
            server.script = right
            await r.closed()
            assert await r.find(KEY) == [NotFound.MISS]
    assert times_opened(logs) > 0
    assert SECRET not in str(logs)


async def test_connection_failing_after_its_probe_is_unused(server: ScriptedServer) -> None:
    server.script = lambda command: right(command) * (2 if command[0] == b"MGET" else 1)
    with capture_logs() as logs:
        async with running(server.path) as r:
            await soon(lambda: server.count(b"MGET") > 2)
            assert r.tier.is_open
    told = [(each["event"], each["use"]) for each in logs]
    assert ("shared_cache_closed", "read") not in told


async def test_late_server_opens_the_breaker(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "LOOK_S", 60)
    async with running(server.path) as r:
        await r.closed()
        server.script = never
        for _ in range(5):
            assert not r.tier.is_open
            r.tier.find([KEY], lambda found: pytest.fail("nobody waits"))()
        assert r.tier.is_open


async def test_missing_server_is_never_queried(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with running(tmp_path / "none.sock", login=f":{SECRET}@") as r:
            await soon(lambda: len(logs) == 2)
            assert await r.find(KEY) == [NotFound.OPEN]
    assert {each["problem"] for each in logs} == {"No such file or directory"}
    assert SECRET not in str(logs)


async def test_user_without_a_password_is_authenticated(server: ScriptedServer) -> None:
    async with running(server.path, login="me@") as r:
        await r.closed()
    assert [b"AUTH", b"me", b""] in server.commands
