"""The load generator against tiny servers in the same loop."""

from __future__ import annotations

import math

import pytest

from loadtests.bench.generator import LoadError, LoadPlan, load, percentile
from tests.unit.loadtests.bench.answering import BUSY, OK, answering

PLAN = LoadPlan(connections=4, seconds=0.3)
HEAD = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n"


def numbered(number: int) -> list[bytes]:
    """Requests whose bodies are 0000, 0001, ..., in pieces."""
    return [HEAD, b"%02d" % (number % 10_000 // 100), b"%02d" % (number % 100)]


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([1.0, 2.0], 50, 1.0),
        ([1.0, 2.0, 3.0], 50, 2.0),
        ([float(n) for n in range(1, 101)], 99, 99.0),
        ([float(n) for n in range(1, 201)], 99, 198.0),
        ([1.0, 2.0, 3.0], 100, 3.0),
        ([1.0, 2.0, 3.0], 0, 1.0),
    ],
)
def test_percentile_is_the_nearest_rank(
    values: list[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == expected


async def test_every_request_is_sent_once_and_every_answer_counted() -> None:
    bodies: list[bytes] = []

    async def answer(body: bytes) -> bytes:
        bodies.append(body)
        return OK

    async with answering(answer) as port:
        run = await load(port, numbered, 100, PLAN)
    assert run.sent == len(bodies)
    assert run.answered <= run.sent <= run.answered + PLAN.connections
    assert bodies == [b"%04d" % (number % 10_000) for number in range(100, 100 + len(bodies))]
    assert 0 < run.p50_ms <= run.p99_ms < 5000
    assert run.requests_per_s == run.answered / PLAN.seconds
    assert run.not_200 == 0


async def test_answers_that_are_not_200_are_counted_and_the_first_is_kept() -> None:
    async def answer(body: bytes) -> bytes:
        return BUSY if body == b"0001" else OK

    async with answering(answer) as port:
        run = await load(port, numbered, 0, LoadPlan(2, 0.3))
    assert run.not_200 >= 1
    assert run.first_not_200 == "503: busy"


async def test_without_an_answer_in_time_there_is_no_latency() -> None:
    async def answer(_: bytes) -> bytes:
        return OK

    async with answering(answer) as port:
        run = await load(port, numbered, 0, LoadPlan(1, 0.0))
    assert run.answered == 0
    assert math.isnan(run.p50_ms)


async def test_a_connection_that_breaks_ends_the_run() -> None:
    async def answer(body: bytes) -> bytes:
        return b"" if body == b"0002" else OK

    async with answering(answer) as port:
        with pytest.raises(LoadError, match="closed a connection"):
            await load(port, numbered, 0, PLAN)


async def test_an_answer_that_cannot_be_read_ends_the_run() -> None:
    async def answer(_: bytes) -> bytes:
        return b"SMTP ready\r\n\r\n"

    async with answering(answer) as port:
        with pytest.raises(LoadError, match="cannot be read"):
            await load(port, numbered, 0, PLAN)


async def test_nobody_listens() -> None:
    async def answer(_: bytes) -> bytes:
        return OK

    async with answering(answer) as port:
        pass
    with pytest.raises(LoadError, match=f"cannot connect to port {port}"):
        await load(port, numbered, 0, PLAN)
