"""One connection of our server: what it reads, and in what order it answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from app.api.transport.parsing import RequestParser
from tests.artifacts import write_artifact
from tests.integration.listening import Doubles, listening, until
from tests.integration.wire import COUNTED, OPEN, READY, answered, ask_for, request


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_artifact(tmp_path, "double")
    return tmp_path


FAST = (
    request(),
    request("/models/double/predict"),
    request("/models/double/versions/1/predict"),
    request("/models/nope/predict"),
    request(chunk_bytes=3),
    request(connection="Keep-Alive"),
)
OTHERS = (
    request("/predict?x=1"),
    request(expect="100-continue"),
    request(version="1.0"),
    request(connection="close"),
    request(method="PUT"),
    READY,
)


async def test_predictions_take_the_fast_path(models: Path) -> None:
    async with listening(models) as server:
        for data in FAST:
            await server.ask(data)
        assert server.asgi == []
        for number, data in enumerate(OTHERS, 1):
            await server.ask(data)
            assert len(server.asgi) == number, data


async def test_known_heads_answer_like_parsed_requests(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = 0
    message_begins = RequestParser.on_message_begin

    def count(self: RequestParser) -> None:
        nonlocal parsed
        parsed += 1
        message_begins(self)

    monkeypatch.setattr(RequestParser, "on_message_begin", count)
    wrong = (b"[", b'{"input": [1]}', b"x" * 3000, b"")
    async with listening(models, max_body_bytes=2000, cache_bytes=0) as server:
        wire = await server.connect()
        for number, data in enumerate((*FAST, *map(request, ["/predict"] * 4, wrong), READY)):
            warm = ask_for(number, x_request_id="mine")
            before = parsed
            for _ in range(3):
                answer = await wire.ask(warm)
                assert answer["x-request-id"] == "mine"
                assert answer.json()["prediction"]["outputs"]["y"] == [2 * number, 4]
            assert parsed - before <= 1
            for at in (0, 30, len(data) - 1):  # in one piece, or in two
                wire.send(data[:at])
                await asyncio.sleep(0.01)
                wire.send(data[at:])
                assert (await wire.answer()).alike() == (await server.ask(data)).alike()
        await wire.close()
        assert await server.metric(OPEN) == 0


async def test_chunks_of_any_size_keep_their_order(models: Path) -> None:
    inputs = [[number / 64, 0.5] for number in range(4000)]
    body = json.dumps({"inputs": inputs}).encode()
    chunks, at = [], 0
    for size in itertools.cycle((1, 2, 5000, 4096, 3, 1, 1, 6000, 4095, 7)):
        if at >= len(body):
            break
        chunks.append(b"%x\r\n%s\r\n" % (len(body[at : at + size]), body[at : at + size]))
        at += size
    head = request("/batch-predict", chunk_bytes=1, connection="keep-alive").partition(b"\r\n\r\n")[
        0
    ]
    async with listening(models, max_items=4000, queue_limit_items=4000) as server:
        answer = await server.ask(head + b"\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n")
        assert answer.status == 200, answer.body
        got = [each["outputs"]["y"] for each in answer.json()["predictions"]]
        assert got == [[2 * a, 2 * b] for a, b in inputs]
        assert server.asgi == []


async def test_small_chunks_use_no_extra_memory(models: Path) -> None:
    """Separate objects of two bytes would take twenty times as much."""
    size = 1 << 17
    async with listening(models, max_body_bytes=2 * size) as server:
        wire = await server.connect()
        data = request(body=b'{"input": [1, 2]}'.ljust(size), chunk_bytes=2)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            wire.send(data)
            await answered(wire, 1)
            most = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
        assert most < 16 * size  # orjson itself takes 12


class TestTooLarge:
    async def test_by_its_content_length(self, models: Path) -> None:
        async with listening(models, max_body_bytes=100) as server:
            wire = await server.connect()
            wire.send(request(body=b" " * 101)[:-101])
            assert (await wire.answer()).code == "payload_too_large"  # before its body came
            wire.send(b" " * 101 + ask_for(1))
            await answered(wire, 1)
            assert server.asgi == []

    @pytest.mark.parametrize("chunk_bytes", [40, 1000])
    async def test_while_it_arrives(self, models: Path, chunk_bytes: int) -> None:
        async with listening(models, max_body_bytes=100) as server:
            wire = await server.connect()
            head, _, body = request(body=b" " * 1000, chunk_bytes=chunk_bytes).partition(
                b"\r\n\r\n"
            )
            wire.send(head + b"\r\n\r\n" + body[:200])
            assert (await wire.answer()).code == "payload_too_large"
            wire.send(body[200:] + ask_for(1))
            await answered(wire, 1)
            assert await server.metric(COUNTED, status="413") == 1
            assert await server.metric(OPEN) == 0

    async def test_limit_is_exact_to_one_byte(self, models: Path) -> None:
        async with listening(models, max_body_bytes=100) as server:
            body = b'{"input": [1, 2]}'.ljust(100)
            for given, status in ((body, 200), (body + b" ", 413)):
                assert (await server.ask(request(body=given))).status == status
                assert (await server.ask(request(body=given, chunk_bytes=7))).status == status


class TestStalled:
    async def test_stalled_body_times_out_and_connection_continues(self, models: Path) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            data = request(x_torchlane_timeout_ms="60")
            wire.send(data[:-5])
            answer = await wire.answer()
            assert (answer.status, answer.code) == (504, "deadline_exceeded")
            assert (
                answer.json()["error"]
                == "the body did not arrive before the deadline; allow more time"
            )
            wire.send(data[-5:] + ask_for(1))
            await answered(wire, 1)
            assert await server.metric(COUNTED, status="504") == 1
            assert await server.metric(OPEN) == 0

    async def test_deadline_counts_from_the_head(self, models: Path) -> None:
        async with listening(models) as server:
            wire = await server.connect()
            wire.send(request(body=b"x" * 10_000, x_torchlane_timeout_ms="200")[:-9_000])
            answer = asyncio.create_task(wire.answer())
            while not answer.done():  # each piece must not give it new time
                wire.send(b" ")
                await asyncio.sleep(0.02)
            assert (await answer).status == 504

    async def test_timely_body_keeps_the_remaining_time(self, models: Path) -> None:
        doubles = Doubles()
        async with listening(models, make_backend=doubles) as server:
            doubles.hold()
            wire = await server.connect()
            data = ask_for(3, x_torchlane_timeout_ms="1000")
            wire.send(data[:-3])
            await until(lambda: any(each.request for each in server.connections))
            wire.send(data[-3:])
            answer = await wire.answer()  # of the engine now, not of the reader
            assert (answer.status, answer.code) == (504, "deadline_exceeded")
            assert "body" not in answer.json()["error"]
            doubles.go_on()


async def test_pieces_of_any_size_give_the_same_answers(models: Path) -> None:
    """Heads, bodies, chunks and upgrades are parsed in the same way wherever a read ends."""
    kinds = (
        ask_for(1),
        READY,
        request(chunk_bytes=2),
        request(chunk_bytes=1000),
        request("/models/nope/predict", b"\n\r\n" * 2000),
        request("/predict?x=1", body=b"\n\n".rjust(5000)),
        request(upgrade="h2c", connection="upgrade"),
        request(method="OPTIONS", body=b""),
        b"\r\n\n" + ask_for(2),
    )
    rng = random.Random(5)
    async with listening(models, cache_bytes=0) as server:
        alone = [(await server.ask(kind)).alike() for kind in kinds]
        for _ in range(15):
            chosen = rng.choices(range(len(kinds)), k=8)
            data = b"".join(kinds[each] for each in chosen)
            wire = await server.connect()
            at = 0
            while at < len(data):
                size = rng.choice((1, 2, 50, 4096, 4097, len(data)))
                wire.send(data[at : at + size])
                at += size
                await asyncio.sleep(rng.choice((0, 0, 0.001)))
            for each in chosen:
                assert (await wire.answer()).alike() == alone[each]
            await wire.close()


@pytest.mark.parametrize("kind", [READY, request("/models/nope/predict"), request(chunk_bytes=9)])
async def test_next_request_waits_wherever_a_read_ends(models: Path, kind: bytes) -> None:
    async with listening(models) as server:
        for at in range(0, len(kind), 5):
            wire = await server.connect()
            wire.send(kind[:at])
            await asyncio.sleep(0.002)
            wire.send(kind[at:] + kind + ask_for(3))
            for _ in range(2):
                await wire.answer()
            await answered(wire, 3)
            await wire.close()
