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

from tests.chaos.answers import STATUSES
from tests.chaos.asking import Numbers
from tests.chaos.asking_handler import HandlerAsker
from tests.chaos.asking_much import FLOOD, LARGE
from tests.chaos.by_grpc import GrpcConversation
from tests.chaos.checker import Checker
from tests.chaos.clients import Client
from tests.chaos.conversation import Interruptions
from tests.chaos.request import Request
from tests.chaos.verdict import Verdict
from tests.chaos.versions import Versions

PATIENCE_S = 0.3
ID = re.compile(rb"X-Request-Id: (\S+)\r\n")
Order = Callable[[Sequence[bytes]], Sequence[bytes]]  # of the answers, one for each request


class Refused(HandlerAsker):
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
