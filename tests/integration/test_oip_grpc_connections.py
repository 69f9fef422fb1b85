"""gRPC: connections that hold calls, streams or descriptors do not close the port for others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode as Code

from app import main
from app.api.oip.grpc import client, relay, streams, unread
from app.api.oip.grpc import server as grpc_server
from app.api.oip.grpc.call import ROUTE
from tests.integration.grpc_calls import (
    HEALTH,
    INFERENCE,
    RawConnection,
    Server,
    numbers,
    refused,
    row,
    serving,
)
from tests.integration.wire import COUNTED, CUT

BUSY_S = 0.3  # only after this time an answer is unread
pytestmark = pytest.mark.asyncio(loop_scope="module")


def connected(server: Server) -> Any:
    """A client with a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options)


async def alive(server: Server) -> object:
    """A call over a connection of its own."""
    async with connected(server) as channel:
        return await channel.unary_unary(f"/{INFERENCE}/ServerLive")(b"")


async def reaches(server: Server, value: float, name: str, **labels: str) -> None:
    async with asyncio.timeout(60):
        while await server.metric(name, **labels) < value:
            await asyncio.sleep(0.02)


class TestUnreadAnswers:
    @staticmethod
    def call(raw: RawConnection, times: int) -> None:
        """Calls whose answers stay unread."""
        for _ in range(times):
            raw.call({b":path": ROUTE.encode()}, row().SerializeToString())

    async def test_unread_small_answers_close_the_port_for_nobody(
        self, models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Of the connections with unread answers, the one with the most ends, without a log."""
        monkeypatch.setattr(grpc_server, "MAX_CALLS", 50)
        async with serving(models) as server:
            raws = [await RawConnection.open(server.port, window=0) for _ in range(3)]
            for raw, calls, all_calls in zip(raws, (30, 19, 10), (30, 49, 59), strict=True):
                self.call(raw, calls)
                await reaches(server, min(all_calls, 50), COUNTED, route=ROUTE)
                await asyncio.sleep(BUSY_S)
            for _ in range(3):
                await alive(server)
            await reaches(server, 1, CUT, code="answer_unread")
            assert await server.metric(CUT, code="answer_unread") == 1
            await raws[0].ended()
            raws[0] = await RawConnection.open(server.port, window=0)
            self.call(raws[0], 30)
            await asyncio.sleep(BUSY_S)
            await alive(server)
            await reaches(server, 2, CUT, code="answer_unread")
            await alive(server)
            assert await server.metric(CUT, code="answer_unread") == 2
            for raw in raws:
                await raw.close()
        assert not caplog.records

    async def test_a_connection_has_few_unread_answers(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(unread, "MOST_UNREAD", 4)
        monkeypatch.setattr(unread, "YOUNG_S", 0.0)
        async with serving(models) as server:
            raw = await RawConnection.open(server.port, window=0)
            self.call(raw, 4)
            await reaches(server, 4, COUNTED, route=ROUTE)
            self.call(raw, 1)
            got = await raw.status()
            assert b"grpc-status\x018" in got  # RESOURCE_EXHAUSTED
            await alive(server)
            await raw.close()


class TestConnections:
    async def test_an_idle_connection_makes_room(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The one that is idle for longest; if all have calls, a new one is refused."""
        monkeypatch.setattr(grpc_server, "most_connections", lambda: 3)
        monkeypatch.setattr(client, "FIRST_S", 0.1)
        async with serving(models) as server:
            silent = await RawConnection.open(server.port)
            await asyncio.sleep(0.2)
            used = await RawConnection.open(server.port)
            used.call({})
            assert b"grpc-status" in await used.status()
            waits = [server.channel.stream_unary(ROUTE)()]  # its message never arrives
            await server.infer(row())
            await asyncio.sleep(0.2)
            assert await alive(server)
            await silent.ended()
            assert await server.metric(CUT, code="idle") == 1
            other = [connected(server) for _ in range(2)]
            for each in other:
                waits.append(each.stream_unary(ROUTE)())
                await each.unary_unary(f"/{INFERENCE}/ServerLive")(b"")
            await used.ended()
            refused_one = await RawConnection.open(server.port)
            await refused_one.ended()
            assert await server.metric(CUT, code="connections_limit") >= 1
            assert numbers(await server.infer(row())) == [2, 4]
            for wait in waits:
                wait.cancel()
            for each in other:
                await each.close()

    async def test_the_last_descriptors_are_kept(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        free = False
        monkeypatch.setattr(relay, "PAUSE_S", 0.05)
        monkeypatch.setattr(main, "is_free_for_connection", lambda _: free)
        async with serving(models) as server:
            asked = asyncio.ensure_future(server.infer(row()))
            await asyncio.sleep(0.3)
            assert not asked.done()
            free = True
            assert numbers(await asked) == [2, 4]

    async def test_open_streams_are_limited(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those of a connection, so that others have some, and all together."""
        monkeypatch.setattr(streams, "MAX_STREAMS_OF_CONNECTION", 2)
        monkeypatch.setattr(streams, "MAX_STREAMS", 3)
        async with serving(models) as server:

            async def opened(channel: Any) -> Any:
                stream = channel.unary_stream(f"/{HEALTH}/Watch")(b"")
                assert await stream.read()
                return stream

            async with connected(server) as other:
                kept = [await opened(server.channel) for _ in range(2)]
                many = server.channel.unary_stream(f"/{HEALTH}/Watch")(b"").read()
                await refused(Code.RESOURCE_EXHAUSTED, many, "on this connection")
                await asyncio.sleep(0.1)
                kept.append(await opened(other))
                many = other.unary_stream(f"/{HEALTH}/Watch")(b"").read()
                await refused(Code.RESOURCE_EXHAUSTED, many, "3 streams")
                for each in kept:
                    each.cancel()
