"""Floods and late readers notice what is wrong with their answers: a green run means something."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from tests.chaos.answers import check_row
from tests.chaos.asking import Numbers
from tests.chaos.asking_much import FLOOD, LARGE, MuchAsker
from tests.chaos.by_grpc import GrpcConversation
from tests.chaos.checker import STATUSES, Checker
from tests.chaos.clients import Client
from tests.chaos.conversation import Conversation, Interruptions
from tests.chaos.request import Request, in_chunks
from tests.chaos.truth import Item, answer
from tests.chaos.verdict import Misjudged, Verdict
from tests.chaos.versions import Versions

PATIENCE_S = 0.3
ID = re.compile(rb"X-Request-Id: (\S+)\r\n")
Order = Callable[[Sequence[bytes]], Sequence[bytes]]  # of the answers, one for each request


class Refused(MuchAsker):
    """Floods with requests for a model that is not there."""

    def cheap(self) -> list[tuple[Request, bytes]]:
        """See `MuchAsker`."""
        return [(each, each.bytes) for each in (self._no_model() for _ in range(FLOOD.start))]


def _refusal(request_id: bytes) -> bytes:
    code = "model_not_found"
    body = json.dumps({"error": "no", "code": code, "request_id": request_id.decode()}).encode()
    head = b"HTTP/1.1 %d X\r\nx-request-id: %b\r\ncontent-type: application/json\r\n"
    return head % (STATUSES[code], request_id) + b"content-length: %d\r\n\r\n%b" % (len(body), body)


@contextlib.asynccontextmanager
async def _refusing(order: Order) -> AsyncIterator[int]:
    """A server that has read the whole flood before it answers; gives its port."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        received = b""
        ids: list[bytes] = []
        while len(ids) < FLOOD.start:
            received += await reader.read(1 << 16)
            ids = ID.findall(received)
        writer.write(b"".join(order([_refusal(each) for each in ids])))
        writer.write_eof()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for writer in writers:
            writer.close()
            await writer.wait_closed()


async def _flood(order: Order, interruptions: Interruptions | None = None) -> Checker:
    """What the checker finds in one flood."""
    versions, rng = Versions((LARGE,)), random.Random(0)
    checker, waits = Checker(versions), interruptions or Interruptions(PATIENCE_S)
    async with _refusing(order) as port:
        asker = Refused("flood", rng, Numbers(rng), versions)
        grpc = GrpcConversation(port, PATIENCE_S)
        await Client(port, asker, checker, rng, waits, grpc).flood_ahead(iter(range(1)))
    return checker


async def test_every_answer_of_a_flood_is_judged() -> None:
    checker = await _flood(lambda answers: answers)
    assert checker.counts == {Verdict.RIGHT: FLOOD.start}
    assert checker.told.requests == {(404, "model_not_found"): FLOOD.start}


@pytest.mark.parametrize(
    ("order", "verdicts"),
    [
        pytest.param(
            lambda answers: [answers[1], answers[0], *answers[2:]],
            {Verdict.MISDELIVERED: 2, Verdict.RIGHT: FLOOD.start - 2},
            id="swapped",
        ),
        pytest.param(
            lambda answers: answers[:-3],
            {Verdict.RIGHT: FLOOD.start - 3, Verdict.LOST: 3},
            id="the last are missing",
        ),
        pytest.param(
            lambda answers: [*answers, answers[-1]],
            {Verdict.RIGHT: FLOOD.start, Verdict.DOUBLED: 1},
            id="the last one twice",
        ),
    ],
)
async def test_wrong_answers_to_a_flood_are_noticed(
    order: Order, verdicts: dict[Verdict, int]
) -> None:
    assert (await _flood(order)).counts == verdicts


async def test_a_stop_excuses_the_rest_of_a_flood() -> None:
    waits = Interruptions(PATIENCE_S, stopped_at=time.monotonic() - 1)
    checker = await _flood(lambda answers: answers[:40], waits)
    assert checker.counts == {Verdict.RIGHT: 40, Verdict.CUT: FLOOD.start - 40}


@pytest.mark.parametrize(
    ("killed", "verdict"), [(True, Verdict.CUT), (False, Verdict.LOST)], ids=["killed", "alive"]
)
async def test_a_cut_within_an_answer_is_no_second_answer(killed: bool, verdict: Verdict) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n4567")
        writer.close()

    checker, waits = Checker(Versions((LARGE,))), Interruptions(PATIENCE_S)
    began = time.monotonic()
    waits.killed_at.extend([began] if killed else [])
    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    async with server:
        talk = Conversation(server.sockets[0].getsockname()[1], checker, waits, random.Random(0))
        connection = await talk.new()
        connection.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        await talk.take_the_only(connection, Request("a", "/metrics", b""), began)
    assert checker.counts == {verdict: 1}


@pytest.mark.parametrize("wrong", [3, 12_345, -1])
def test_each_number_of_a_large_answer_is_compared(wrong: int) -> None:
    item = Item(4711)
    row = answer(LARGE, 1, item)
    check_row(LARGE, 0, item, row)
    row[wrong] += 1
    with pytest.raises(Misjudged, match=f"differs is {range(len(row))[wrong]}$"):
        check_row(LARGE, 0, item, row)
    with pytest.raises(Misjudged, match=f"{len(row) - 3} numbers of {len(row)}"):
        check_row(LARGE, 0, item, answer(LARGE, 1, item)[3:])


def test_a_body_in_chunks() -> None:
    sent = in_chunks(Request("a", "/predict", b"abc"), 2)
    assert sent.partition(b"\r\n\r\n")[2] == b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    assert b"Content-Length" not in sent
