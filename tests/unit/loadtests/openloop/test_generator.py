"""Open loop: every request goes out on time, whatever becomes of those before it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import time

import numpy as np
import pytest

from loadtests.openloop import generator
from loadtests.openloop.address import Unreachable
from loadtests.openloop.connection import BROKEN, UNREADABLE
from loadtests.openloop.generator import (
    LONGEST_IDLE_S,
    OUT_OF_OWN,
    UNANSWERED,
    Limits,
    TrialTooLarge,
    send,
)
from tests.unit.loadtests.openloop.servers import BUSY, CLOSING, OK, answering, requests


async def at_once(body: bytes) -> bytes:
    return OK


async def test_every_request_is_sent_once_and_answered() -> None:
    bodies: list[bytes] = []

    async def answer(body: bytes) -> bytes:
        bodies.append(body)
        return BUSY if body == b"0003" else OK

    due = np.arange(60) / 200
    async with answering(answer) as address:
        sent = await send(address, due, requests(60), Limits())
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
        sent = await send(address, due, requests(300), Limits())
    during = (sent.done_s - due)[100:200]  # each one waits for what is left of it, or longer
    assert (during >= 0.49 - np.arange(100) / 200).all()


async def test_latency_includes_the_wait_for_a_connection() -> None:
    async def answer(body: bytes) -> bytes:
        await asyncio.sleep(0.1)
        return OK

    async with answering(answer) as address:
        sent = await send(address, np.zeros(6), requests(6), Limits(connections=2))
    assert sent.connections == 2
    assert sent.starved == 4
    assert not sent.faults
    assert (np.sort(sent.done_s) >= [0.09, 0.09, 0.18, 0.18, 0.27, 0.27]).all()


async def test_unanswered_request_times_out_with_its_wait() -> None:
    async def answer(body: bytes) -> bytes:
        await asyncio.sleep(30 if body == b"0001" else 0)
        return OK

    async with answering(answer) as address:
        sent = await send(address, np.array([0, 0.1, 0.2]), requests(3), Limits(patience_s=0.3))
    assert sent.faults == {1: UNANSWERED}
    assert sent.responses[1] is None
    assert 0.39 <= sent.done_s[1] < 20  # its answer would take 30 s


async def test_connection_and_protocol_errors_fail_their_requests() -> None:
    async def answer(body: bytes) -> bytes:
        return {b"0001": b"", b"0003": b"SMTP ready\r\n\r\n"}.get(body, OK)

    async with answering(answer) as address:
        sent = await send(address, np.arange(6) / 50, requests(6), Limits())
    assert sent.faults == {1: BROKEN, 3: f"{UNREADABLE}: not an HTTP/1.1 response: b'SMTP ready'"}
    assert sum(response is not None for response in sent.responses) == 4


async def test_closed_connection_is_not_reused() -> None:
    async def answer(body: bytes) -> bytes:
        return CLOSING

    async with answering(answer) as address:
        sent = await send(address, np.arange(5) / 50, requests(5), Limits())
    assert not sent.faults
    assert sent.connections == 5


async def test_long_idle_connection_is_not_reused() -> None:
    async with answering(at_once) as address:
        due = np.array([0, 0.1, 0.2 + LONGEST_IDLE_S])
        sent = await send(address, due, requests(3), Limits())
    assert not sent.faults
    assert sent.connections == 2


async def test_connections_are_reused() -> None:
    async with answering(at_once) as address:
        sent = await send(address, np.arange(20) / 20, requests(20), Limits())
    assert sent.connections < 5


async def test_refused_connection_is_unreachable() -> None:
    async with answering(at_once) as address:
        pass
    with pytest.raises(Unreachable, match=f"cannot connect to 127.0.0.1:{address.port}"):
        await send(address, np.zeros(3), requests(3), Limits())


async def test_generator_without_file_descriptors_blames_itself() -> None:
    async def answer(body: bytes) -> bytes:
        await asyncio.sleep(0.2)
        return OK

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with answering(answer) as address:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest_free_file() + 6, hard))
        try:
            sent = await send(address, np.zeros(20), requests(20), Limits(patience_s=0.5))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sent.unopened
    assert {sent.faults[index] for index in sent.unopened} == {
        f"{OUT_OF_OWN}: {os.strerror(errno.EMFILE)}"
    }
    assert sent.connect_error is None


def _lowest_free_file() -> int:
    with open(os.devnull) as file:
        return file.fileno()


async def test_answers_exceeding_the_memory_limit_end_the_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generator, "MAX_ANSWER_BYTES", 9)
    began = time.perf_counter()
    async with answering(at_once) as address:
        with pytest.raises(TrialTooLarge, match="the answers of a trial need more than 0 MiB"):
            await send(address, np.append(np.arange(9) / 50, 30), requests(10), Limits())
    assert time.perf_counter() - began < 10


async def test_empty_schedule_ends_immediately() -> None:
    async with answering(at_once) as address:
        sent = await send(address, np.empty(0), [], Limits())
    assert sent.responses == []


async def test_cancellation_closes_all_connections() -> None:
    open_now = 0

    async def answer(body: bytes) -> bytes:
        nonlocal open_now
        open_now += 1
        try:
            await asyncio.sleep(30)
        finally:
            open_now -= 1
        return OK

    async with answering(answer) as address:
        task = asyncio.create_task(send(address, np.zeros(3), requests(3), Limits()))
        while open_now < 3:
            await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
    assert open_now == 0
