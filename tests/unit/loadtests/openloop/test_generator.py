"""Open loop: every request goes out on time, whatever becomes of those before it."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from loadtests.openloop.connection import BROKEN, UNREADABLE
from loadtests.openloop.generator import NO_ANSWER, TrialLimits, send
from tests.unit.loadtests.openloop.servers import BUSY, OK, answering, requests


async def test_every_request_is_sent_once_and_answered() -> None:
    bodies: list[bytes] = []

    async def answer(body: bytes) -> bytes:
        bodies.append(body)
        return BUSY if body == b"0003" else OK

    due = np.arange(60) / 200
    async with answering(answer) as address:
        sent = await send(address, due, requests(60), TrialLimits())
    assert sorted(bodies) == [b"%04d" % number for number in range(60)]
    statuses = [response.status for response in sent.responses if response is not None]
    assert statuses == [200] * 3 + [503] + [200] * 56
    assert not sent.faults
    assert (sent.noticed_s >= due).all()
    assert (sent.done_s > sent.noticed_s).all()
    assert sent.span_s >= due[-1]
    assert 0 < sent.cpu_s <= sent.span_s


async def test_stall_delays_every_request_that_arrives_meanwhile() -> None:
    """Coordinated omission: a closed loop would see one late answer; here a hundred are late."""
    stall: list[float] = []  # when the server stood still

    async def answer(body: bytes) -> bytes:
        if body == b"0100":
            stall.append(time.perf_counter())
        if stall:
            await asyncio.sleep(max(0.0, stall[0] + 0.5 - time.perf_counter()))
        return OK

    due = np.arange(300) / 200
    async with answering(answer) as address:
        sent = await send(address, due, requests(300), TrialLimits())
    during = (sent.done_s - due)[100:200]  # each one waits for what is left of it, or longer
    assert (during >= 0.49 - np.arange(100) / 200).all()


async def test_unanswered_request_times_out_with_its_wait() -> None:
    async def answer(body: bytes) -> bytes:
        await asyncio.sleep(30 if body == b"0001" else 0)
        return OK

    async with answering(answer) as address:
        sent = await send(
            address, np.array([0, 0.1, 0.2]), requests(3), TrialLimits(patience_s=0.3)
        )
    assert sent.faults[1] == NO_ANSWER
    assert sent.responses[1] is None
    assert 0.39 <= sent.done_s[1] < 20  # its answer would take 30 s


async def test_connection_and_protocol_errors_fail_their_requests() -> None:
    async def answer(body: bytes) -> bytes:
        return {b"0001": b"", b"0003": b"SMTP ready\r\n\r\n", b"0004": OK + OK}.get(body, OK)

    async with answering(answer) as address:
        sent = await send(address, np.arange(6) / 50, requests(6), TrialLimits())
    assert sent.faults[1] == BROKEN
    assert sent.faults[3].startswith(f"{UNREADABLE}: Expected HTTP/")
    assert sent.faults[4] == f"{UNREADABLE}: more than one answer to one request"
    assert len(sent.faults) == 3
