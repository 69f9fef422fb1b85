"""One connection of our server: what it reads, in what order it answers, when it ends."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app.api.protocol import MOST_PATHS, Endpoints, Exchange
from app.metrics import RequestMetrics
from app.types import Arrays
from tests.artifacts import write_artifact
from tests.integration.wire import (
    JSON,
    Doubles,
    Listening,
    Wire,
    chunked,
    listening,
    request,
    until,
)

KEEP_ALIVE_S = 0.2
LARGE = 4_000_000  # numbers of an answer that no socket takes at once
OPEN = "torchlane_requests_in_flight"
COUNTED = "torchlane_requests_total"
READY = request("/health/ready", b"", method="GET")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_artifact(tmp_path, "double")
    return tmp_path


def ask_for(number: float, **headers: str) -> bytes:
    return request(body=b'{"input": [%r, 2]}' % number, **headers)


def doubled(number: float) -> list[float]:
    return [2 * number, 4]


async def answered(wire: Wire, number: float) -> None:
    answer = await wire.answer()
    assert (answer.status, answer.json()["prediction"]["outputs"]["y"]) == (200, doubled(number))


async def counted(server: Listening, **labels: str) -> float:
    return await server.metric(COUNTED, **labels)


class TestEndpoints:
    @pytest.mark.parametrize(
        ("url", "route", "many", "name", "version"),
        [
            (b"/predict", "/predict", False, None, None),
            (b"/batch-predict", "/batch-predict", True, None, None),
            (b"/models/a-b_9/predict", "/models/{name}/predict", False, "a-b_9", None),
            (
                b"/models/x/versions/07/batch-predict",
                "/models/{name}/versions/{version}/batch-predict",
                True,
                "x",
                "07",
            ),
        ],
    )
    def test_predictions(
        self, url: bytes, route: str, many: bool, name: str | None, version: str | None
    ) -> None:
        found = Endpoints().at(url)
        assert found is not None
        assert (found.route, found.many, found.name, found.version) == (route, many, name, version)

    @pytest.mark.parametrize(
        "url",
        [b"/", b"/predict/", b"/predict?a=1", b"//predict", b"/Predict", b"/predict\xff", b"*"]
        + [b"/models//predict", b"/models/a%20b/predict", b"/models/a/versions/x/predict"]
        + [b"/models/a/versions/1234567890/predict", b"http://host/predict", b"/predict\n"],
    )
    def test_everything_else_is_not_ours(self, url: bytes) -> None:
        assert Endpoints().at(url) is None

    def test_what_clients_make_up_is_not_kept_for_ever(self) -> None:
        endpoints = Endpoints()
        first = [endpoints.at(b"/models/m%d/predict" % n) for n in range(2 * MOST_PATHS)]
        again = [endpoints.at(b"/models/m%d/predict" % n) for n in range(2 * MOST_PATHS)]
        assert again == first
        kept = sum(one is other for one, other in zip(first, again, strict=True))
        assert kept == MOST_PATHS


@pytest.mark.parametrize(
    ("data", "short"),
    [
        (request(), True),
        (request("/models/double/predict"), True),
        (request("/models/double/versions/1/predict"), True),
        (request("/models/nope/predict"), True),
        (request(chunk_bytes=3), True),
        (request(connection="Keep-Alive"), True),
        (request("/predict?x=1"), False),
        (request(expect="100-continue"), False),
        (request(version="1.0"), False),
        (request(connection="close"), False),
        (request(method="PUT"), False),
        (READY, False),
    ],
)
async def test_who_takes_the_short_way(models: Path, data: bytes, short: bool) -> None:
    async with listening(models) as server:
        await server.ask(data)
        assert bool(server.asgi) is not short


@pytest.mark.parametrize("chunk_bytes", [None, 1, 5, 1000])
async def test_a_body_may_come_byte_by_byte(models: Path, chunk_bytes: int | None) -> None:
    async with listening(models) as server:
        wire = await server.connect()
        for number in (3.0, 4.0):
            data = request(body=b'{"input": [%r, 2]}' % number, chunk_bytes=chunk_bytes)
            for at in range(len(data)):
                wire.send(data[at : at + 1])
                await asyncio.sleep(0)
            await answered(wire, number)
        assert server.asgi == []


class TestOrder:
    """Answers come in the order of the requests, however many were sent at once."""

    async def test_many_at_once(self, models: Path) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            wire.send(b"".join(ask_for(float(n)) for n in range(50)))
            for n in range(50):
                await answered(wire, n)
            assert await counted(server, status="200") == 50

    @pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
    async def test_both_ways_mixed(self, models: Path, cache_bytes: int) -> None:
        rng = random.Random(3)
        async with listening(models, cache_bytes=cache_bytes) as server:
            wire = await server.connect()
            for _ in range(30):
                numbers = [rng.choice([None, 1.0, 2.0, rng.randrange(800) / 16]) for _ in range(5)]
                wire.send(b"".join(READY if n is None else ask_for(n) for n in numbers))
                for number in numbers:
                    if number is None:
                        assert (await wire.answer()).json()["status"] == "ready"
                    else:
                        await answered(wire, number)
            assert await server.metric(OPEN) == 0

    async def test_what_comes_behind_a_slow_one_waits(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            wire = await server.connect()
            wire.send(ask_for(5))
            await until(lambda: doubles.one.batches == [[5]])
            wire.send(READY + ask_for(6))
            await asyncio.sleep(0.05)
            assert server.asgi == []  # begun only when its turn has come
            doubles.go_on()
            await answered(wire, 5)
            assert (await wire.answer()).json()["status"] == "ready"
            await answered(wire, 6)

    async def test_hundreds_on_one_connection(self, models: Path) -> None:
        others = [READY, request("/metrics", b"", method="GET"), request("/nope", b"")]
        async with listening(models) as server:
            wire = await server.connect()
            for n in range(300):
                if n % 3:
                    wire.send(ask_for(n % 50))
                    await answered(wire, n % 50)
                else:
                    wanted = 404 if n % 9 == 6 else 200
                    assert (await wire.ask(others[n // 3 % 3])).status == wanted
            assert len(server.connections) == 1
            assert await counted(server) == 200


class TestTooLarge:
    async def test_by_its_head(self, models: Path) -> None:
        async with listening(models, max_body_bytes=100) as server:
            wire = await server.connect()
            wire.send(request(body=b" " * 101)[:-101])
            assert (await wire.answer()).code == "payload_too_large"  # before its body came
            wire.send(b" " * 101 + ask_for(1))
            await answered(wire, 1)
            assert server.asgi == []

    @pytest.mark.parametrize("chunk_bytes", [40, 1000])
    async def test_while_it_comes(self, models: Path, chunk_bytes: int) -> None:
        async with listening(models, max_body_bytes=100) as server:
            wire = await server.connect()
            head, _, body = request(body=b" " * 1000, chunk_bytes=chunk_bytes).partition(
                b"\r\n\r\n"
            )
            wire.send(head + b"\r\n\r\n" + body[:200])
            assert (await wire.answer()).code == "payload_too_large"
            wire.send(body[200:] + ask_for(1))
            await answered(wire, 1)
            assert await counted(server, status="413") == 1
            assert await server.metric(OPEN) == 0

    async def test_one_byte_decides(self, models: Path) -> None:
        async with listening(models, max_body_bytes=100) as server:
            body = b'{"input": [1, 2]}'.ljust(100)
            for given, status in ((body, 200), (body + b" ", 413)):
                assert (await server.ask(request(body=given))).status == status
                assert (await server.ask(request(body=given, chunk_bytes=7))).status == status


class TestStalled:
    async def test_it_is_told_the_deadline_and_may_go_on(self, models: Path) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            data = request(x_torchlane_timeout_ms="60")
            wire.send(data[:-5])
            answer = await wire.answer()
            assert (answer.status, answer.code) == (504, "deadline_exceeded")
            assert answer.json()["error"] == "the body did not arrive in time; allow more"
            wire.send(data[-5:] + ask_for(1))
            await answered(wire, 1)
            assert await counted(server, status="504") == 1
            assert await server.metric(OPEN) == 0

    async def test_the_time_is_that_of_the_head(self, models: Path) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            began = asyncio.get_running_loop().time()
            wire.send(request(x_torchlane_timeout_ms="200")[:-10])
            for _ in range(9):  # each piece must not give it new time
                await asyncio.sleep(0.04)
                wire.send(b" ")
            assert (await wire.answer()).status == 504
            assert asyncio.get_running_loop().time() - began < 2

    async def test_a_body_in_time_has_the_rest_of_it(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            wire = await server.connect()
            data = ask_for(3, x_torchlane_timeout_ms="150")
            wire.send(data[:-3])
            await asyncio.sleep(0.05)
            wire.send(data[-3:])
            answer = await wire.answer()  # of the engine now, not of the reader
            assert (answer.status, answer.code) == (504, "deadline_exceeded")
            assert "body" not in answer.json()["error"]
            doubles.go_on()


class TestGone:
    async def test_in_the_middle_of_its_body(self, models: Path) -> None:
        async with listening(models) as server:
            for chunk_bytes in (None, 4):
                wire = await server.connect()
                wire.send(request(chunk_bytes=chunk_bytes)[:-4])
                await until(lambda: bool(server.connections))
                await asyncio.sleep(0.02)
                await wire.close()
                await until(lambda: not server.connections)
            assert await counted(server) == await counted(server, status="499") == 2
            assert await counted(server, code="abandoned") == 2
            assert await server.metric(OPEN) == 0

    async def test_while_others_wait_for_the_same(self, models: Path) -> None:
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
            assert await counted(server, status="499") == 1
            assert await counted(server, status="200") == 2
            assert await server.metric(OPEN) == 0

    async def test_before_its_item_was_computed(self, models: Path) -> None:
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

    async def test_with_more_requests_on_the_way(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            wire = await server.connect()
            wire.send(ask_for(3))
            await until(lambda: doubles.one.batches == [[3]])
            wire.send(ask_for(4))
            await asyncio.sleep(0.02)
            wire.writer.transport.abort()
            doubles.go_on()
            await until(lambda: not server.connections)
            assert await server.metric(OPEN) == 0
            assert await counted(server) <= 2


class TestKeepAlive:
    @pytest.mark.parametrize("data", [request(), request("/models/x/predict"), READY])
    async def test_an_idle_connection_is_closed_in_its_time(
        self, models: Path, data: bytes
    ) -> None:
        async with listening(models, keep_alive_s=KEEP_ALIVE_S) as server:
            wire = await server.connect()
            loop = asyncio.get_running_loop()
            for _ in range(3):
                await wire.ask(data)
                await asyncio.sleep(KEEP_ALIVE_S / 2)
            await wire.ask(data)
            began = loop.time()
            assert await wire.rest() == b""
            assert 0.9 * KEEP_ALIVE_S < loop.time() - began < 10 * KEEP_ALIVE_S

    async def test_one_that_waits_for_an_answer_stays(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles, keep_alive_s=KEEP_ALIVE_S) as server:
            wire = await server.connect()
            await wire.ask(ask_for(3))  # idle once, so that its time is counted
            doubles.hold()
            wire.send(ask_for(4))
            await asyncio.sleep(3 * KEEP_ALIVE_S)
            doubles.go_on()
            await answered(wire, 4)

    async def test_one_that_waits_for_a_pipelined_answer_stays(self, models: Path) -> None:
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

    async def test_one_that_is_sending_stays(self, models: Path) -> None:
        async with listening(models, keep_alive_s=KEEP_ALIVE_S) as server:
            wire = await server.connect()
            await wire.ask(ask_for(3))
            for byte in ask_for(4):
                wire.send(bytes([byte]))
                await asyncio.sleep(4 * KEEP_ALIVE_S / len(ask_for(4)))
            await answered(wire, 4)

    @pytest.mark.parametrize("way", ["short", "asgi"])
    async def test_one_that_sends_what_was_refused_already_stays(
        self, models: Path, way: str
    ) -> None:
        expect = {"expect": "100-continue"} if way == "asgi" else {}
        async with listening(models, keep_alive_s=KEEP_ALIVE_S) as server:
            wire = await server.connect()
            data = request("/models/nope/predict", b" " * 40, **expect)
            wire.send(data[:-40])
            assert (await wire.answer()).status == 404
            for _ in range(40):
                wire.send(b" ")
                await asyncio.sleep(KEEP_ALIVE_S / 10)
            wire.send(ask_for(3))
            await answered(wire, 3)

    async def test_a_reader_that_takes_its_time_gets_all_of_it(self, models: Path) -> None:
        def large(inputs: Arrays) -> Arrays | None:
            if inputs["x"][0, 0] != 5:
                return None
            return {"y": np.zeros((len(inputs["x"]), LARGE), np.float32)}

        doubles, loop = Doubles(large), asyncio.get_running_loop()
        async with listening(models, make_backend=doubles, keep_alive_s=KEEP_ALIVE_S) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as slow:
                slow.setblocking(False)
                await loop.sock_sendall(slow, ask_for(5))
                await until(lambda: server.state.total_requests == 1)
                await asyncio.sleep(3 * KEEP_ALIVE_S)
                got = b""
                while piece := await loop.sock_recv(slow, 1 << 24):
                    got += piece
            assert got.count(b"0.0") == LARGE

    async def test_who_does_not_read_is_answered_the_long_way(self, models: Path) -> None:
        def large(inputs: Arrays) -> Arrays | None:
            if inputs["x"][0, 0] != 5:
                return None
            return {"y": np.zeros((len(inputs["x"]), LARGE), np.float32)}

        doubles, loop = Doubles(large), asyncio.get_running_loop()
        async with listening(models, make_backend=doubles) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as slow:
                slow.setblocking(False)
                await loop.sock_sendall(slow, ask_for(5))
                await until(lambda: server.state.total_requests == 1)
                await loop.sock_sendall(slow, ask_for(6))
                await until(lambda: server.asgi == ["POST /predict"])  # that way waits to write
                got = b""
                while not got.endswith(b"[12.0,4.0]}}}"):
                    got += await loop.sock_recv(slow, 1 << 24)
            assert got.count(b"HTTP/1.1 200 OK") == 2


class TestEnd:
    async def test_when_the_client_says_so(self, models: Path) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            wire.send(ask_for(3, connection="close"))
            answer = await wire.answer()
            assert (answer.status, answer["connection"]) == (200, "close")
            assert await wire.rest() == b""

    @pytest.mark.parametrize(
        "data", [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n"]
    )
    async def test_what_is_not_http(self, models: Path, data: bytes) -> None:
        async with listening(models) as server:
            for before in (b"", ask_for(3)):
                wire = await server.connect()
                if before:
                    assert (await wire.ask(before)).status == 200
                wire.send(data)
                answer = await wire.answer()
                assert (answer.status, answer.body) == (400, b"Invalid HTTP request received.")
                assert await wire.rest() == b""

    async def test_a_body_in_damaged_chunks(self, models: Path) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            wire.send(request(body=b"", chunk_bytes=4)[:-5] + b"5\r\nabcdefgh\r\n")
            assert (await wire.answer()).status == 400
            assert await wire.rest() == b""
            await until(lambda: not server.connections)
            assert await server.metric(OPEN) == 0
            assert await counted(server) == 1

    @pytest.mark.parametrize("method", ["HEAD", "PUT", "GET", "DELETE"])
    async def test_another_method(self, models: Path, method: str) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            assert (await wire.ask(ask_for(3))).status == 200
            wire.send(request(body=b"", method=method))
            answer = await wire.answer(body=method != "HEAD")
            assert (answer.status, answer["allow"]) == (405, "POST")
            wire.send(ask_for(4))
            await answered(wire, 4)

    async def test_a_busy_connection_at_a_stop(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            wire = await server.connect()
            wire.send(ask_for(3))
            await until(lambda: doubles.one.batches == [[3]])
            (connection,) = server.connections
            connection.shutdown()
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

    async def test_a_stalled_body_at_a_stop(self, models: Path) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            wire.send(ask_for(3)[:-3])
            await until(lambda: any(each.cycle for each in server.connections))
            (connection,) = server.connections
            connection.shutdown()
            connection.give_up()
            answer = await wire.answer()
            assert (answer.status, answer.code) == (503, "shutting_down")
            assert answer["connection"] == "close"
            assert await wire.rest() == b""
            assert await counted(server, status="503") == 1
            assert await server.metric(OPEN) == 0

    async def test_what_is_computed_is_not_given_up(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            wire = await server.connect()
            wire.send(ask_for(3))
            await until(lambda: doubles.one.batches == [[3]])
            for connection in server.connections:
                connection.give_up()
            doubles.go_on()
            await answered(wire, 3)


class TestBugsInside:
    """What nobody foresaw is answered, logged once, and hurts nobody else."""

    @pytest.mark.parametrize("where", ["decode_numbers", "encode"])
    @pytest.mark.parametrize("way", ["short", "asgi"])
    async def test_a_codec_that_raises(self, models: Path, where: str, way: str) -> None:
        def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError("/a/secret/path")

        async with listening(models, cache_bytes=0) as server:
            codec = server.service.loaded.resolve(None, None).codec
            expect = {"expect": "100-continue"} if way == "asgi" else {}
            wire = await server.connect()
            right = getattr(codec, where)
            with capture_logs() as logs:
                setattr(codec, where, broken)
                answer = await wire.ask(ask_for(3, x_request_id="mine", **expect))
                setattr(codec, where, right)
            assert answer.status == 500
            assert answer.json() == {
                "error": "something went wrong inside the server; its log has this request's id",
                "code": "internal",
                "request_id": "mine",
                "details": [],
            }
            assert answer["x-request-id"] == "mine"
            assert answer["content-type"] == JSON
            told = [each for each in logs if each["event"] == "unhandled_error"]
            assert [each["request_id"] for each in told] == ["mine"]
            wire.send(ask_for(4))
            await answered(wire, 4)
            assert await counted(server, status="500", code="internal") == 1
            assert await server.metric(OPEN) == 0

    async def test_one_answer_that_cannot_be_written_leaves_its_mates_theirs(
        self, models: Path
    ) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            codec = server.service.loaded.resolve(None, None).codec
            right = codec.encode

            def odd(outputs: dict[str, object]) -> object:
                if outputs["y"][0] == 8:  # type: ignore[index]
                    raise ZeroDivisionError
                return right(outputs)

            codec.encode = odd
            doubles.hold()
            wires = [await server.connect() for _ in range(4)]
            for number, wire in enumerate(wires, 2):
                wire.send(ask_for(number))
            await until(lambda: sum(map(len, doubles.one.batches)) >= 1)
            doubles.go_on()
            for number, wire in enumerate(wires, 2):
                if number == 4:
                    assert (await wire.answer()).status == 500
                else:
                    await answered(wire, number)

    @pytest.mark.parametrize("path", ["/predict", "/models/nope/predict"])
    async def test_metrics_that_raise_cost_no_answer(
        self, models: Path, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        def broken(self: object, seconds: float) -> None:
            raise ZeroDivisionError

        wanted = 200 if path == "/predict" else 404
        async with listening(models) as server:
            wire, mate = await server.connect(), await server.connect()
            assert (await wire.ask(request(path))).status == wanted  # the cache has it now
            with monkeypatch.context() as patch, capture_logs():
                patch.setattr(RequestMetrics, "ended", broken)
                assert (await wire.ask(request(path))).status == wanted
                mate.send(ask_for(7))
                await answered(mate, 7)
            # No second answer to the request that was answered.
            wire.send(ask_for(8))
            await answered(wire, 8)
            mate.send(ask_for(9))
            await answered(mate, 9)
            assert await server.metric(OPEN) == 0


async def test_what_was_answered_is_freed_without_the_garbage_collector(models: Path) -> None:
    async with listening(models, cache_bytes=0) as server:
        wire = await server.connect()
        gc.collect()
        gc.disable()
        try:
            for number in range(300):
                wire.send(ask_for(number / 8))
                await answered(wire, number / 8)
            alive = sum(isinstance(each, Exchange) for each in gc.get_objects())
        finally:
            gc.enable()
    assert alive < 5


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_split_of_a_stream_gives_the_same_answers(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    pieces = st.sampled_from(
        [
            (ask_for(3), 200),
            (request(chunk_bytes=4), 200),
            (request(body=b"{"), 422),
            (request(body=b""), 422),
            (READY, 200),
            (request("/models/no/predict"), 404),
            (request("/batch-predict", b'{"inputs": [[1, 2], [3, 4]]}'), 200),
            (request(content_type="text/csv"), 415),
            (request(method="PUT"), 405),
        ]
    )
    chosen = data.draw(st.lists(pieces, min_size=1, max_size=6))
    stream = b"".join(each for each, _ in chosen)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))

    async def scene(models: Path) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                wire.send(stream[start:stop])
                await asyncio.sleep(data.draw(st.sampled_from([0, 0.001])))
            got = [(await wire.answer()).status for _ in chosen]
            assert got == [status for _, status in chosen]
            assert await server.metric(OPEN) == 0

    folder = tmp_path_factory.mktemp("split")
    write_artifact(folder, "double")
    asyncio.run(scene(folder))


@given(
    tails=st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.builds(
                lambda at, byte: ask_for(3)[:at] + bytes([byte]) + ask_for(3)[at + 1 :],
                st.integers(0, len(ask_for(3)) - 1),
                st.integers(0, 255),
            ),
            st.binary(max_size=60).map(lambda each: chunked(each, 7) + each),
        ),
        min_size=10,
        max_size=30,
    )
)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
def test_garbage_harms_nobody(tmp_path_factory: pytest.TempPathFactory, tails: list[bytes]) -> None:
    async def scene(models: Path) -> None:
        async with listening(models, request_timeout_ms=50, keep_alive_s=KEEP_ALIVE_S) as server:
            good = await server.connect()
            for number, tail in enumerate(tails):
                odd = await server.connect()
                odd.send((ask_for(3) if number % 2 else b"") + tail)
                await asyncio.sleep(0)
                good.send(ask_for(number))
                await answered(good, number)
                odd.writer.transport.abort()
            await good.close()
            await until(lambda: not server.connections)
            assert await server.metric(OPEN) == 0

    folder = tmp_path_factory.mktemp("garbage")
    write_artifact(folder, "double")
    asyncio.run(scene(folder))
