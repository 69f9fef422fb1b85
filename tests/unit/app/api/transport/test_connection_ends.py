"""How connections end: disconnects, idle ones, data that is not HTTP, a stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.api.transport.reading import AHEAD_BYTES
from app.api.turns import Participant
from tests.artifacts import write_artifact
from tests.integration.listening import Doubles, Listening, large_for_five, listening, until
from tests.integration.wire import COUNTED, LIMIT_S, OPEN, READY, Wire, answered, ask_for, request

KEEP_ALIVE_S = 0.2
LARGE = 4_000_000  # numbers of an answer that no socket takes at once


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_artifact(tmp_path, "double")
    return tmp_path


async def trickle(wire: Wire, data: bytes) -> bool:
    """Send data a byte at a time, for several times as long as a connection may be idle.

    Returns:
        Whether every byte came in time: a busy machine may stand still between two.
    """
    loop, longest_s = asyncio.get_running_loop(), 0.0
    last = loop.time()
    for byte in data:
        wire.send(bytes([byte]))
        await asyncio.sleep(3 * KEEP_ALIVE_S / len(data))
        last, longest_s = loop.time(), max(longest_s, loop.time() - last)
    return longest_s < KEEP_ALIVE_S / 2


async def stop_before_turn(
    server: Listening, wire: Wire, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop the only connection while what it reads waits for its turn, which comes afterwards."""
    await wire.ask(READY)
    (connection,) = server.connections
    waiting: list[Participant] = []
    with monkeypatch.context() as patched:
        patched.setattr(server.service.turns, "wait", waiting.append)
        wire.send(data)
        await until(lambda: bool(waiting) and connection.is_answered)
        connection.shutdown()
    server.service.turns.wait(*waiting)


class TestClientGone:
    async def test_in_the_middle_of_the_body(self, models: Path) -> None:
        async with listening(models) as server:
            for chunk_bytes in (None, 4):
                wire = await server.connect()
                wire.send(request(chunk_bytes=chunk_bytes)[:-4])
                await until(lambda: bool(server.connections))
                await asyncio.sleep(0.02)
                await wire.close()
                await until(lambda: not server.connections)
            assert await server.metric(COUNTED) == await server.metric(COUNTED, status="499") == 2
            assert await server.metric(COUNTED, code="abandoned") == 2
            assert await server.metric(OPEN) == 0

    async def test_while_others_wait_for_the_same_item(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            wires = [await server.connect() for _ in range(3)]
            for wire in wires:
                wire.send(ask_for(3))
            await until(lambda: doubles.one.batches == [[3]])
            await wires[0].close()
            await until(lambda: len(server.connections) == 2)
            doubles.go_on()
            await answered(wires[1], 3)
            await answered(wires[2], 3)
            assert await server.metric(COUNTED, status="499") == 1
            assert await server.metric(COUNTED, status="200") == 2
            assert await server.metric(OPEN) == 0

    async def test_before_its_item_is_computed(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            first, gone, last = [await server.connect() for _ in range(3)]
            first.send(ask_for(3))
            await until(lambda: doubles.one.batches == [[3]])
            gone.send(ask_for(4))
            last.send(ask_for(5))
            await asyncio.sleep(0.05)
            await gone.close()
            await until(lambda: len(server.connections) == 2)
            doubles.go_on()
            await answered(first, 3)
            await answered(last, 5)
            assert doubles.one.batches == [[3], [5]]

    async def test_behind_a_large_body(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            wire = await server.connect()
            wire.send(request(body=b'{"input": [3, 2]}' + b" " * 1_000_000))
            await until(lambda: doubles.one.batches == [[3]])
            await asyncio.sleep(0.02)
            wire.writer.transport.abort()
            async with asyncio.timeout(LIMIT_S):  # the model still computes
                while await server.metric(OPEN):
                    await asyncio.sleep(0.01)
            doubles.go_on()

    async def test_with_a_pipelined_request(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            wire = await server.connect()
            wire.send(request("/predict?", b'{"input": [3, 2]}'))
            await until(lambda: doubles.one.batches == [[3]])
            wire.send(ask_for(4))
            await asyncio.sleep(0.02)
            wire.writer.transport.abort()
            async with asyncio.timeout(LIMIT_S):  # the model still computes
                while await server.metric(OPEN):
                    await asyncio.sleep(0.01)
            assert await server.metric(COUNTED, status="499") == 1
            doubles.go_on()


class TestKeepAlive:
    @pytest.mark.parametrize("data", [request(), request("/models/x/predict"), READY])
    async def test_idle_connection_is_closed_after_the_timeout(
        self, models: Path, data: bytes
    ) -> None:
        async with listening(models, keep_alive_s=KEEP_ALIVE_S) as server:
            loop, used_again = asyncio.get_running_loop(), False
            while not used_again:  # on a busy machine half of the time may be all of it
                wire = await server.connect()
                await wire.ask(data)
                await asyncio.sleep(KEEP_ALIVE_S / 2)
                began = loop.time()
                with contextlib.suppress(EOFError, ConnectionError):
                    await wire.ask(data)
                    used_again = True
            assert await wire.rest() == b""
            assert loop.time() - began > 0.9 * KEEP_ALIVE_S

    @pytest.mark.skipif(sys.platform == "win32", reason="uvloop has no Windows")
    @pytest.mark.parametrize("first", [b"", READY])
    def test_request_that_arrived_while_the_loop_stood_still_is_answered(
        self, models: Path, first: bytes
    ) -> None:
        import uvloop  # noqa: PLC0415  # it runs timers before it reads, unlike asyncio

        async def ask() -> None:
            async with listening(
                models, keep_alive_s=KEEP_ALIVE_S, head_timeout_s=KEEP_ALIVE_S
            ) as server:
                wire = await server.connect()
                if first:
                    await wire.ask(first)
                ours, theirs = socket.socketpair()

                def stand_still() -> None:  # while the loop handles what it has found to read
                    asyncio.get_running_loop().remove_reader(ours)
                    wire.send(ask_for(3))  # at once: nothing waits before it
                    time.sleep(2 * KEEP_ALIVE_S)

                with ours, theirs:
                    asyncio.get_running_loop().add_reader(ours, stand_still)
                    theirs.send(b"now")
                    await answered(wire, 3)

        uvloop.run(ask())

    async def test_connection_awaiting_a_pipelined_answer_stays_open(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles, keep_alive_s=KEEP_ALIVE_S) as server:
            wire = await server.connect()
            await wire.ask(ask_for(3))  # idle once, so that its time is counted
            doubles.one_at_a_time()
            wire.send(ask_for(4) + ask_for(5))
            await until(lambda: doubles.one.batches == [[4]])
            doubles.go_on()
            await answered(wire, 4)
            await asyncio.sleep(3 * KEEP_ALIVE_S)
            doubles.go_on()
            await answered(wire, 5)

    async def test_connection_that_sends_stays_open(self, models: Path) -> None:
        async with listening(models, keep_alive_s=KEEP_ALIVE_S) as server:
            in_time = False
            while not in_time:
                wire = await server.connect()
                await wire.ask(ask_for(3))
                in_time = await trickle(wire, ask_for(4))
            await answered(wire, 4)

    @pytest.mark.parametrize("way", ["short", "asgi"])
    async def test_connection_sending_a_refused_body_stays_open(
        self, models: Path, way: str
    ) -> None:
        query = "?a=1" if way == "asgi" else ""
        async with listening(models, keep_alive_s=KEEP_ALIVE_S) as server:
            data, in_time = request(f"/models/nope/predict{query}", b" " * 40), False
            while not in_time:
                wire = await server.connect()
                wire.send(data[:-40])
                assert (await wire.answer()).status == 404
                in_time = await trickle(wire, b" " * 40)
            wire.send(ask_for(3))
            await answered(wire, 3)

    async def test_requests_wait_until_the_answer_before_is_read(self, models: Path) -> None:
        doubles, loop = large_for_five(LARGE), asyncio.get_running_loop()
        async with listening(models, make_backend=doubles) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as slow:
                slow.setblocking(False)
                await loop.sock_sendall(slow, ask_for(5))
                await until(lambda: any(each.writer.is_paused for each in server.connections))
                await loop.sock_sendall(slow, ask_for(6) + READY)
                await asyncio.sleep(0.05)
                assert server.asgi == []
                got = b""
                while not got.endswith(b"}") or got.count(b"HTTP/1.1 200 OK") < 3:
                    got += await loop.sock_recv(slow, 1 << 24)
            assert b"[12.0,4.0]}}}HTTP/1.1 200 OK" in got


class TestEnd:
    async def test_a_busy_connection_at_a_stop(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            wire = await server.connect()
            wire.send(ask_for(3))
            await until(lambda: doubles.one.batches == [[3]])
            (connection,) = server.connections
            connection.shutdown()
            connection.give_up()
            doubles.go_on()
            answer = await wire.answer()
            assert (answer.status, answer["connection"]) == (200, "close")
            assert answer.names.count("connection") == 1
            assert await wire.rest() == b""

    async def test_an_idle_connection_at_a_stop(self, models: Path) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            await wire.ask(ask_for(3))
            (connection,) = server.connections
            connection.shutdown()
            assert await wire.rest() == b""

    @pytest.mark.parametrize("path", ["/predict", "/models/nope/predict", "/predict?"])
    async def test_a_request_that_awaits_its_turn_at_a_stop_gets_the_last_answer(
        self, models: Path, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            await stop_before_turn(server, wire, READY + request(path) + READY, monkeypatch)
            assert (await wire.answer()).status == 200
            assert (await wire.answer())["connection"] == "close"
            assert await wire.rest() == b""

    async def test_a_request_behind_an_answer_that_has_begun_is_answered_at_a_stop(
        self, models: Path
    ) -> None:
        loop = asyncio.get_running_loop()
        async with listening(models, make_backend=large_for_five(LARGE)) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as slow:
                slow.setblocking(False)
                await loop.sock_sendall(slow, ask_for(5))
                await until(lambda: any(each.writer.is_paused for each in server.connections))
                await loop.sock_sendall(slow, ask_for(6))
                (connection,) = server.connections
                await until(lambda: connection.reader.ahead is not None)
                connection.shutdown()
                received = b""
                while piece := await loop.sock_recv(slow, 1 << 24):
                    received += piece
        first, _, second = received.partition(b"}HTTP/1.1 200 OK")
        assert b"connection: close" not in first[:1000]
        assert b"connection: close" in second
        assert second.endswith(b'"double","version":1,"prediction":{"outputs":{"y":[12.0,4.0]}}}')

    async def test_an_answer_that_ends_while_its_read_awaits_a_turn_is_the_last(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a read of 64 KiB or more, the next read waits for its turn."""
        doubles, loop = large_for_five(LARGE), asyncio.get_running_loop()
        async with listening(models, make_backend=doubles, keep_alive_s=10 * LIMIT_S) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as slow:
                slow.setblocking(False)
                await until(lambda: bool(server.connections))
                (connection,) = server.connections
                wait = server.service.turns.wait

                def wait_without_reader(participant: Participant) -> None:
                    if participant is not connection.reader:  # but the answer is encoded
                        wait(participant)

                with monkeypatch.context() as patched:
                    patched.setattr(server.service.turns, "wait", wait_without_reader)
                    body = b'{"input": [5, 2]}' + b" " * AHEAD_BYTES
                    connection.data_received(request(body=body))  # in one read
                    await until(lambda: connection.writer.is_paused)
                    connection.shutdown()
                    received = await loop.sock_recv(slow, 1 << 24)
                    while not received.endswith(b"}}}"):
                        received += await loop.sock_recv(slow, 1 << 24)
                    await until(lambda: connection.is_answered)
                    ahead = connection.reader.ahead
                    assert ahead is not None
                    assert not len(ahead)
                wait(connection.reader)
                async with asyncio.timeout(LIMIT_S):
                    assert await loop.sock_recv(slow, 1) == b""

    async def test_half_a_request_that_awaits_its_turn_at_a_stop_keeps_nothing_open(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with listening(models, keep_alive_s=10 * LIMIT_S) as server:
            wire = await server.connect()
            await stop_before_turn(server, wire, READY + READY[:-2], monkeypatch)
            assert (await wire.answer()).status == 200
            assert await wire.rest() == b""

    async def test_a_stalled_body_at_a_stop(self, models: Path) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            wire.send(ask_for(3)[:-3])
            await until(lambda: any(each.request for each in server.connections))
            (connection,) = server.connections
            connection.shutdown()
            connection.give_up()
            answer = await wire.answer()
            assert (answer.status, answer.code) == (503, "shutting_down")
            assert answer["connection"] == "close"
            assert await wire.rest() == b""
            assert await server.metric(COUNTED, status="503") == 1
            assert await server.metric(OPEN) == 0

    @pytest.mark.parametrize(
        "behind", [ask_for(5), request("/predict?"), READY], ids=["short", "asgi", "other"]
    )
    async def test_requests_after_the_last_answer_are_ignored(
        self, models: Path, behind: bytes
    ) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            assert (await wire.ask(ask_for(3))).status == 200
            server.service.lifecycle.begin_drain(5)
            with capture_logs() as logs:
                wire.send(ask_for(4) + behind)
                answer = await wire.answer()
                assert (answer.code, answer["connection"]) == ("shutting_down", "close")
                assert await wire.rest() == b""
                await until(lambda: not server.connections)
            assert [each["event"] for each in logs] == ["request"]  # nothing of those behind it
            assert server.asgi == []
            assert await server.metric(COUNTED) == 2
