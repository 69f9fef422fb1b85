"""Malicious requests: rejected in time, with a message, without delaying other clients."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import itertools
import socket
import struct
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from structlog.testing import capture_logs

from app.api.memory import FREE_BYTES
from app.api.transport import connection, reading, writing
from tests.integration.listening import Doubles, Listening, large_for_five, listening, until
from tests.integration.wire import COUNTED, CUT, OPEN, READY, Wire, answered, ask_for, request
from tests.kinds import write_pictures
from tests.unit.models.pictures import jpeg, noise

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHORTLY_S = 0.2
WAYS: dict[str, dict[str, Any]] = {"short": {}, "asgi": {"expect": "100-continue"}}
KIB, MIB = 1 << 10, 1 << 20
NPY = "application/x-npy"
NOTHING = contextlib.nullcontext()
ways = pytest.mark.parametrize("way", WAYS)


async def drip(wire: Wire, data: bytes, pause_s: float = 0.01) -> None:
    """Send a byte at a time until the other side has had enough."""
    try:
        for byte in data:
            wire.send(bytes([byte]))
            await asyncio.sleep(pause_s)
    except ConnectionError:
        pass


def broken(**headers: str) -> bytes:
    """A request whose body breaks the rules of HTTP."""
    return request(body=b"", chunk_bytes=1, **headers)[:-5] + b"x\r\n"


async def closed(wire: Wire) -> bool:
    """Whether the connection ends without another byte, be it with a reset for what was unread."""
    try:
        return await wire.rest() == b""
    except ConnectionError:
        return True


async def check_well(server: Listening) -> None:
    """Others are served, and nothing is left behind."""
    assert (await server.ask(READY)).status == 200
    assert await server.metric(OPEN) == 0


@contextlib.asynccontextmanager
async def asked_for_much(server: Listening, **headers: str) -> AsyncIterator[socket.socket]:
    """A client that has asked for a large answer, of which its system takes little unread."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * KIB)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", server.port))
        await loop.sock_sendall(client, ask_for(5, **headers))
        await until(lambda: bool(server.connections))
        yield client


async def read_slowly(client: socket.socket, piece_bytes: int, pause_s: float) -> bytes:
    """The whole answer."""
    got = b""
    async with asyncio.timeout(60):
        while not got.endswith(b"]}}}"):
            piece = await asyncio.get_running_loop().sock_recv(client, piece_bytes)
            assert piece, f"cut after {len(got)} bytes"
            got += piece
            await asyncio.sleep(pause_s)
    return got


MANY = 500_000  # numbers of a large answer, of two megabytes


class TestSlow:
    async def test_a_slow_head_times_out(self, models: Path) -> None:
        head = request().partition(b"\r\n\r\n")[0]

        async def late(server: Listening, before: bytes, part: int) -> None:
            wire = await server.connect()
            if before:
                assert (await wire.ask(before)).status == 200
            wire.send(head[:part])
            answer = await wire.answer()
            assert (answer.status, answer.code, answer["connection"]) == (408, "head_late", "close")
            assert "within 1 s" in answer.json()["error"]
            assert await wire.rest() == b""

        async with listening(models, head_timeout_s=1.0) as server:
            cases = [(before, part) for before in (b"", request()) for part in (1, 20, -1)]
            await asyncio.gather(*(late(server, *case) for case in cases))
            assert await server.metric(CUT, code="head_late") == len(cases)
            await check_well(server)

    async def test_single_bytes_do_not_extend_the_head_timeout(self, models: Path) -> None:
        async with listening(models, head_timeout_s=SHORTLY_S) as server:
            wire, silent = await server.connect(), await server.connect()
            dripping = asyncio.create_task(drip(wire, b"GET / HTTP/1.1\r\nx: " + b"a" * 10_000))
            assert (await wire.answer()).status == 408
            assert await silent.rest() == b""
            dripping.cancel()

    @ways
    async def test_reading_after_the_last_answer_is_bounded(
        self, server: Listening, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writing, "LAST_READ_S", SHORTLY_S)
        wire = await server.connect()
        wire.send(broken(**WAYS[way]))
        dripping = asyncio.create_task(drip(wire, b"x" * 10_000))
        await until(wire.writer.is_closing)
        dripping.cancel()
        await check_well(server)

    async def test_blank_lines_do_not_extend_keep_alive(self, models: Path) -> None:
        async with listening(models, keep_alive_s=SHORTLY_S) as server:
            wire = await server.connect()
            assert (await wire.ask(request())).status == 200
            dripping = asyncio.create_task(drip(wire, b"\r\n" * 10_000))
            assert await closed(wire)
            dripping.cancel()

    @ways
    async def test_a_slow_body_is_limited_by_the_timeout(self, models: Path, way: str) -> None:
        async with listening(models, request_timeout_ms=1000 * SHORTLY_S) as server:
            wire = await server.connect()
            wire.send(request(body=b" " * 10_000, **WAYS[way])[:-10_000])
            dripping = asyncio.create_task(drip(wire, b" " * 10_000))
            answer = await wire.answer()
            assert (answer.status, answer.code) == (504, "deadline_exceeded")
            # What is rejected may go on for as long again, and no longer.
            assert await closed(wire)
            dripping.cancel()
            await check_well(server)

    async def test_reading_a_rejected_body_is_bounded(self, models: Path) -> None:
        async with listening(models, request_timeout_ms=1000 * SHORTLY_S) as server:
            for path in ("/models/nope/predict", "/models/nope/predict?a=1", "/nope"):
                wire = await server.connect()
                wire.send(request(path, b" " * 10_000)[:-10_000])
                assert (await wire.answer()).status == 404
                dripping = asyncio.create_task(drip(wire, b" " * 10_000))
                assert await closed(wire)
                dripping.cancel()
            wire = await server.connect()
            wire.send(request("/health/live", b" " * 100, method="GET")[:-100])
            assert (await wire.answer()).status == 200
            assert await wire.rest() == b""

    @ways
    @pytest.mark.parametrize("ending", ["whole", "gone"])
    async def test_slow_bodies_share_a_byte_limit(
        self, models: Path, way: str, ending: str
    ) -> None:
        """One has its memory for as long as it sends, and gives it back however it ends."""
        limit = 200_000  # of which the first 64 KiB of a body are not counted
        async with listening(models, max_body_bytes=limit, bodies_limit_bytes=limit) as server:
            bodies = server.service.bodies
            first, second, third, small = [await server.connect() for _ in range(4)]
            right = request(body=b'{"input": [3, 2]}' + b" " * (limit - 17), **WAYS[way])
            first.send(right[:-10])
            await until(lambda: bodies.held == limit - 10 - FREE_BYTES)
            small.send(request(body=b'{"input": [5, 2]}', **WAYS[way])[:-1])
            second.send(request(body=b" " * limit, **WAYS[way])[:-10])
            answer = await second.answer()
            assert (answer.status, answer.code, answer["retry-after"]) == (503, "overloaded", "1")
            assert "bytes, the limit is 200000" in answer.json()["error"]
            await until(lambda: bodies.held == limit - 10 - FREE_BYTES)
            small.send(b"}")
            await answered(small, 5)
            if ending == "whole":
                first.send(right[-10:])
                await answered(first, 3)
            else:
                await first.close()
            await until(lambda: bodies.held == 0)
            third.send(right)
            await answered(third, 3)
            await check_well(server)
            assert bodies.held == 0

    @ways
    async def test_a_body_is_freed_once_items_are_queued(self, models: Path, way: str) -> None:
        """The queue is bounded by items, which may be a thousandth of the body."""
        large = request(body=b'{"input": [3, 2]}' + b" " * 4 * MIB, **WAYS[way])
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            first, second = await server.connect(), await server.connect()
            first.send(ask_for(1))
            await until(lambda: bool(doubles.one.batches))
            tracemalloc.start()
            try:
                second.send(large)
                while await server.metric("torchlane_queue_depth_items") == 0:
                    await asyncio.sleep(0.01)
                kept = tracemalloc.take_snapshot().filter_traces(
                    [tracemalloc.Filter(True, "*/app/*")]
                )
            finally:
                tracemalloc.stop()
            doubles.go_on()
            await answered(first, 1)
            await answered(second, 3)
            assert sum(each.size for each in kept.traces) < MIB

    @pytest.mark.parametrize("headers", [*WAYS.values(), {"connection": "close"}])
    async def test_an_unread_answer_is_dropped(
        self, models: Path, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writing, "UNREAD_S", SHORTLY_S)
        monkeypatch.setattr(writing, "LAST_READ_S", 0.05)
        async with listening(models, make_backend=large_for_five(MANY)) as server:
            async with asked_for_much(server, **headers):
                await until(lambda: not server.connections)
            assert await server.metric(CUT, code="answer_unread") == 1
            await check_well(server)

    @pytest.mark.parametrize("headers", [{}, {"connection": "close"}])
    async def test_a_slow_reader_gets_the_whole_answer(
        self, models: Path, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writing, "UNREAD_S", 0.1)
        monkeypatch.setattr(writing, "LAST_READ_S", 0.02)
        doubles = large_for_five(MANY)
        async with listening(models, make_backend=doubles, keep_alive_s=0.02) as server:
            async with asked_for_much(server, **headers) as client:
                got = await read_slowly(client, 32 * KIB, 0.01)
            assert got.rpartition(b"\r\n\r\n")[2].count(b"0.0") == MANY

    async def test_what_a_slow_reader_acknowledges_counts(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server's own buffer moves only when much of the system's is free."""
        monkeypatch.setattr(writing, "UNREAD_S", 1.0)
        monkeypatch.setattr(writing, "UNREAD_CHECKS", 1)
        numbers = MANY // 5
        async with listening(models, make_backend=large_for_five(numbers)) as server:
            async with asked_for_much(server) as client:
                got = await read_slowly(client, 4 * KIB, 0.02)
            assert got.rpartition(b"\r\n\r\n")[2].count(b"0.0") == numbers

    async def test_an_unread_answer_has_less_time_if_memory_is_short(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writing, "UNREAD_S", SHORTLY_S)
        monkeypatch.setattr(writing, "UNREAD_CHECKS", 1_000_000)
        doubles = large_for_five(MANY)
        async with listening(models, make_backend=doubles, answers_limit_bytes=1) as server:
            async with asked_for_much(server):
                await until(lambda: not server.connections)
            assert await server.metric(CUT, code="answer_unread") == 1
            assert server.service.answers.held == 0

    @ways
    @pytest.mark.parametrize("is_short", [True, False])
    async def test_a_reader_must_be_faster_if_memory_is_short(
        self, models: Path, way: str, is_short: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A few slow readers would otherwise hold all memory of answers for hours."""
        monkeypatch.setattr(writing, "UNREAD_S", 0.1)
        monkeypatch.setattr(writing, "WHOLE_S", 0.2)
        limit = 1 if is_short else 1 << 30
        doubles = large_for_five(MANY)
        async with listening(models, make_backend=doubles, answers_limit_bytes=limit) as server:
            async with asked_for_much(server, **WAYS[way]) as client:
                with pytest.raises((AssertionError, ConnectionError)) if is_short else NOTHING:
                    await read_slowly(client, 32 * KIB, 0.01)
            assert await server.metric(CUT, code="answer_unread") == is_short

    @ways
    async def test_a_client_that_stops_reading_is_dropped(
        self, models: Path, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writing, "UNREAD_S", 0.1)
        loop = asyncio.get_running_loop()
        async with listening(models, make_backend=large_for_five(MANY)) as server:
            async with asked_for_much(server, **WAYS[way]) as client:
                got = 0
                while got < MIB:
                    got += len(await loop.sock_recv(client, 32 * KIB))
                await until(lambda: not server.connections)
            assert await server.metric(CUT, code="answer_unread") == 1


class TestIdle:
    async def test_idle_connections_make_room(self, models: Path) -> None:
        """The excess of idle ones, oldest first, although all new ones come in one turn."""
        async with listening(models) as server:
            wires = [await server.connect() for _ in range(9)]
            for wire in wires:
                await wire.ask(ask_for(3))
            server.service.idle.most = 8
            new = [await server.connect() for _ in range(4)]
            answers = await asyncio.gather(*(wire.ask(ask_for(3)) for wire in new))
            assert [each.status for each in answers] == [200] * len(new)
            await until(lambda: len(server.connections) == 8)
            for wire in wires[:5]:
                assert await wire.rest() == b""
            for wire in (*wires[5:], *new):
                assert (await wire.ask(ask_for(3))).status == 200
            server.service.idle.most = 100
            assert await server.metric(CUT, code="idle") == 5

    async def test_new_connections_have_time_for_a_request(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with listening(models) as server:
            server.service.idle.most = 1
            wires = [await server.connect() for _ in range(4)]
            await asyncio.sleep(0.05)
            answers = await asyncio.gather(*(wire.ask(ask_for(3)) for wire in wires[:3]))
            assert [each.status for each in answers] == [200] * 3
            await until(lambda: len(server.connections) == 1)  # without any further connection
            assert (await wires[3].ask(ask_for(3))).status == 200
            monkeypatch.setattr(connection, "FIRST_S", 0.0)
            await server.connect()
            new = await server.connect()
            assert (await new.ask(ask_for(3))).status == 200
            await until(lambda: len(server.connections) == 1)

    async def test_an_unread_answer_is_not_idle(self, models: Path) -> None:
        """Closing would lose it, or wait for its client for ever."""
        loop = asyncio.get_running_loop()
        async with listening(models, make_backend=large_for_five(6_000, 1 / 3)) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as deaf:
                deaf.setblocking(False)
                sent = 0
                while not any(
                    each.transport.get_write_buffer_size() for each in server.connections
                ):
                    await loop.sock_sendall(deaf, ask_for(5))
                    sent += 1
                    await asyncio.sleep(0.01)
                server.service.idle.most = 1
                assert (await server.ask(ask_for(3))).status == 200
                got = b""
                while got.count(b"HTTP/1.1 200") < sent or not got.endswith(b"}"):
                    got += await loop.sock_recv(deaf, 1 << 20)


class TestHeads:
    """Larger heads, and more data around bodies, than any client needs."""

    async def test_an_endless_head_is_rejected(self, server: Listening) -> None:
        start = b"POST /predict HTTP/1.1\r\nhost: x\r\n"
        heads = {
            "value": start + b"long: " + b"a" * 200 * KIB,
            "headers": start + b"a: b\r\n" * 30_000,
            "url": b"POST /predict?" + b"a" * 200 * KIB,
            "ended value": start + b"long: " + b"a" * 65 * KIB + b"\r\n\r\n",
            "ended headers": b"POST /predict HTTP/1.1\r\n" + b"a: b\r\n" * 129 + b"\r\n",
            "ended url": b"GET /predict?" + b"a" * 65 * KIB + b" HTTP/1.1\r\n\r\n",
        }
        cut = await server.metric(CUT, code="head_too_large")
        server.asgi.clear()
        for (name, head), before in itertools.product(heads.items(), (b"", request())):
            wire = await server.connect()
            if before:
                assert (await wire.ask(before)).status == 200
            wire.send(head)
            answer = await wire.answer()
            assert (answer.status, answer.code) == (431, "head_too_large"), name
            assert answer["connection"] == "close"
        assert server.asgi == []
        assert await server.metric(CUT, code="head_too_large") == cut + 2 * len(heads)
        await check_well(server)

    async def test_heads_within_the_limits_are_accepted(self, server: Listening) -> None:
        wire = await server.connect()
        many: dict[str, Any] = {f"x-{number}": "a" * 400 for number in range(120)}
        for _ in range(2):
            assert (await wire.ask(request(**many))).status == 200
            # with a body behind it that is larger than a head may be
            data = request(body=b'{"input": [1, 2]}'.ljust(200 * KIB), **many)
            assert (await wire.ask(data)).status == 200

    @ways
    async def test_endless_chunk_extensions_and_trailers_are_rejected(
        self, server: Listening, way: str
    ) -> None:
        cut = await server.metric(CUT, code="head_too_large")
        tails = {
            "chunk extension": b"1;" + b"a" * 200 * KIB,
            "trailers": b"0\r\n" + b"a: b\r\n" * 30_000,
            "trailer": b"0\r\na: " + b"b" * 200 * KIB,
        }
        for name, tail in tails.items():
            wire = await server.connect()
            wire.send(request(body=b"", chunk_bytes=1, **WAYS[way])[:-5])
            await until(lambda: any(each.request for each in server.connections))
            wire.send(tail)
            answer = await wire.answer()
            assert (answer.status, answer.code) == (431, "head_too_large"), name
            await until(lambda: not server.connections)
        assert await server.metric(CUT, code="head_too_large") == cut + len(tails)
        await check_well(server)

    async def test_requests_sent_ahead_are_not_parsed(self, models: Path) -> None:
        doubles, ahead = Doubles(), 6000
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            wire = await server.connect()
            wire.send(ask_for(4) + READY * ahead)
            await until(lambda: doubles.one.batches == [[4]])
            await asyncio.sleep(0.05)
            assert server.asgi == []
            doubles.go_on()
            await answered(wire, 4)
            for _ in range(ahead):
                assert (await wire.answer()).status == 200
            await check_well(server)

    async def test_requests_sent_ahead_share_a_byte_limit(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "AHEAD_BYTES", MIB)  # so that two connections are enough
        doubles = Doubles()
        async with listening(
            models, make_backend=doubles, max_body_bytes=100 * KIB, bodies_limit_bytes=100 * KIB
        ) as server:
            doubles.hold()
            first, second = await server.connect(), await server.connect()
            first.send(ask_for(4) + READY * 6000)  # one alone always fits
            await until(lambda: doubles.one.batches == [[4]])
            await until(lambda: server.service.bodies.held > 0)
            second.send(ask_for(5) + READY * 6000)
            async with asyncio.timeout(60):
                while not await server.metric(CUT, code="overloaded"):
                    await asyncio.sleep(0.01)
            doubles.go_on()
            await answered(second, 5)  # what was parsed is answered
            assert await closed(second)
            await first.close()
            await check_well(server)
            await until(lambda: server.service.bodies.held == 0)

    @ways
    async def test_a_broken_pipelined_body_spares_earlier_requests(
        self, models: Path, way: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            wire = await server.connect()
            caplog.clear()
            with capture_logs() as logs:
                wire.send(ask_for(4, **WAYS[way]) + broken())
                await until(lambda: doubles.one.batches == [[4]])
                doubles.go_on()
                await answered(wire, 4)
                answer = await wire.answer()
                assert (answer.status, answer.code) == (400, "bad_request")
                assert answer["connection"] == "close"
                assert await wire.rest() == b""
            assert ([each["event"] for each in logs], caplog.records) == (["request"], [])
            assert await server.metric(OPEN) == 0
            assert await server.metric(CUT, code="bad_request") == 1


async def test_a_closed_connection_is_freed_immediately(server: Listening) -> None:
    """Else connections would wait for the garbage collector, which runs seldom under load."""
    gc.collect()
    gc.disable()
    try:
        for sent in (ask_for(3), ask_for(3, **WAYS["asgi"]), READY, broken()):
            wire = await server.connect()
            await wire.ask(sent)
            (kind,) = {type(each) for each in server.connections}
            assert not is_gone(kind)
            await wire.close()
            await until(partial(is_gone, kind))
    finally:
        gc.enable()


def is_gone(kind: type) -> bool:
    """Whether no object lives; no weak reference may be taken to one that is compiled (ADR 11)."""
    return not any(type(each) is kind for each in gc.get_objects())


def filled(unit: bytes, head: bytes = b'{"input": [', tail: bytes = b"0]}") -> bytes:
    """A body of one megabyte of repeated bytes."""
    return head + unit * (MIB // len(unit)) + tail


LARGE_BOMBS = {
    "deep": b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "unclosed": b'{"input": ' + b"[" * MIB,
    "lists": filled(b"[],"),
    "objects": filled(b'{"a":1},'),
    "nested objects": filled(b'{"a":', b'{"input": ', b"1"),
    "strings": filled(b'"ab",'),
    "names": b'{"input": {' + b",".join(b'"%x":0' % n for n in range(100_000)) + b"}}",
    "numbers": filled(b"0,"),
    "beside": filled(b"0,", b'{"other": ['),
}
SMALL_BOMBS = {
    "NaN": b'{"input": [NaN, 1]}',
    "infinity": b'{"input": [Infinity, 1]}',
    "huge exponent": b'{"input": [1e400, 1]}',
    "huge integer": b'{"input": [' + b"9" * 400 + b", 1]}",
    "huger integer": b'{"input": [' + b"9" * MIB + b", 1]}",
    "integer in quotes": b'{"input": ["' + b"9" * 5000 + b'", 1]}',
    "little deep": b'{"input": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    "lone surrogate": b'{"input": "\\ud800"}',
}


async def rejected(server: Listening, sent: dict[str, Any], status: int, *words: str) -> None:
    answer = await server.ask(request(**sent))
    code = "payload_too_large" if status == 413 else "invalid_input"
    assert (answer.status, answer.code) == (status, code), sent["body"][:99]
    assert all(word in answer.json()["error"] for word in words)
    assert len(answer.body) < 500


async def test_a_json_bomb_is_rejected_before_parsing(server: Listening) -> None:
    for bomb in LARGE_BOMBS.values():
        await rejected(server, {"body": bomb}, 413, "the largest valid body for this model has")
    await check_well(server)


async def test_malformed_numbers_and_nesting_are_rejected(server: Listening) -> None:
    for bomb in SMALL_BOMBS.values():
        await rejected(server, {"body": bomb}, 422)
    await check_well(server)


async def test_many_items(server: Listening) -> None:
    for count in (2000, 200_000):
        body = b'{"inputs": [' + b"[1,2]," * count + b"[1,2]]}"
        await rejected(server, {"path": "/batch-predict", "body": body}, 413)
    await check_well(server)


def npy(header: bytes, version: bytes = b"\1\0") -> bytes:
    size = struct.pack("<H" if version == b"\1\0" else "<I", len(header))
    return b"\x93NUMPY" + version + size + header


NPY_BOMBS = {
    "nested": npy(b"(" * 60_000),
    "shape": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 9999999)}\n"),
    "no bytes": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 0)}\n"),
    "negative": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -8)}\n"),
    "objects": npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (2,)}\n") + b"cos\nsystem\n.",
    "header": b"\x93NUMPY\2\0\xff\xff\xff\xff{",
}


async def test_npy_bombs(server: Listening) -> None:
    for bomb in NPY_BOMBS.values():
        await rejected(server, {"body": bomb, "content_type": NPY}, 422)
    await check_well(server)


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def png(width: int, height: int, *more: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(min(height * (width + 1), 5 * MIB))))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + pixels + chunk(b"IEND")


def picture_bombs() -> dict[str, tuple[int, bytes]]:
    """What they are, and the status of their answers."""
    grows = zlib.compress(bytes(200 * MIB), 9)
    scan = jpeg(Image.fromarray(noise(64, 64)))
    return {
        "header of 50000 by 50000": (422, png(50_000, 50_000)),
        "header of 2 billion": (422, png(2**31 - 1, 2**31 - 1)),
        "just above": (422, png(2001, 2000)),
        "grows as a text": (200, png(8, 8, chunk(b"zTXt", b"a\0\0" + grows))),
        "grows as a profile": (200, png(8, 8, chunk(b"iCCP", b"a\0\0" + grows))),
        "more pixels than it says": (200, png(8, 8)[:33] + chunk(b"IDAT", grows) + chunk(b"IEND")),
        "chunks without end": (422, png(8, 8, chunk(b"tEXt", b"a\0b") * 20_000)),
        "fewer rows than it says": (422, png(8, 9)[:33] + png(8, 8)[33:]),
        "a JPEG scan cut short": (422, scan[:-40] + b"\xff\xd9"),
        "a JPEG header of 7000 by 7000": (422, scan.replace(b"\0\x40\0\x40", b"\x1b\x58\x1b\x58")),
        "a page": (422, b"<svg><script>alert(1)</script></svg>"),
        "nothing": (422, b""),
    }


async def test_picture_bombs(tmp_path: Path) -> None:
    """Each as a file and in base64; sizes are known before a pixel is decoded."""
    write_pictures(tmp_path)
    async with listening(tmp_path) as server:
        for name, (status, picture) in picture_bombs().items():
            as_file = request("/predict", picture, content_type="image/png")
            in_base64 = request("/predict", b'{"input": "%s"}' % base64.b64encode(picture))
            for sent in (as_file, in_base64):
                answer = await server.ask(sent)
                assert answer.status == status, (name, answer.body)
        assert await server.metric(COUNTED, status="500") == 0
        # The pictures of one request share a budget.
        one = b'"%s"' % base64.b64encode(png(2000, 2000))
        body = b'{"inputs": [%s]}' % b",".join([one] * 5)
        answer = await server.ask(request("/batch-predict", body))
        assert (answer.status, answer.code) == (413, "payload_too_large")
        assert "pixels in total" in answer.json()["error"]
