"""Callers of the model `double` that draw their inputs by Zipf's law, and check each answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import httpx

from tests.e2e.server import PLAIN
from tests.integration.wire import JSON, Wire, ask_for

INPUTS = 1000
# What stands for an answer where the process that had the request has ended.
SERVER_LOST = 502


@dataclass
class Tally:
    """What became of the requests.

    Attributes:
        answered: with the right answer.
        again: that were sent again, by their caller, because their server was lost.
        wrong: answers that are not right, in full.
        seen: inputs that were asked for.
    """

    answered: int = 0
    again: int = 0
    wrong: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)


def zipf(rng: random.Random, inputs: int = INPUTS) -> Iterator[int]:
    """Numbers below `inputs`: the second is drawn half as often as the first, and so on."""
    cumulative = list(itertools.accumulate(1 / rank for rank in range(1, inputs + 1)))
    while True:
        yield from rng.choices(range(inputs), cum_weights=cumulative, k=1000)


async def callers(
    port: int,
    numbers: Iterator[int],
    seconds: float,
    *,
    count: int = 24,
    tally: Tally | None = None,
) -> Tally:
    """So many callers ask at the same time, each for one after the other.

    Args:
        port: where they connect.
        numbers: what they ask for; they end with it.
        seconds: after which they end.
        count: of them.
        tally: to add to.
    """
    found, until = tally or Tally(), time.monotonic() + seconds
    left = itertools.takewhile(lambda _: time.monotonic() < until, numbers)
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(_call(port, left, found))
    return found


async def _call(port: int, numbers: Iterator[int], tally: Tally) -> None:
    async with contextlib.AsyncExitStack() as stack:
        wire = await stack.enter_async_context(connected(port))
        for number in numbers:
            tally.seen.add(number)
            while (told := await _ask(wire, number)) is None:
                tally.again += 1
                wire = await stack.enter_async_context(connected(port))
            if told:
                tally.wrong.append(told)
            else:
                tally.answered += 1


async def _ask(wire: Wire, number: int) -> str | None:
    """Empty: it was answered rightly; None: whoever had it has ended; else what is wrong."""
    try:
        got = await wire.ask(ask_for(number / 16))
    except (EOFError, ConnectionError):
        return None
    if got.status == SERVER_LOST and got.json()["code"] == "server_lost":
        return None
    if got.status != 200 or got.json()["prediction"] != {"outputs": {"y": [number / 8, 4]}}:
        return f"{number}: {got}"
    return ""


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Wire]:
    """A connection to that port of this machine."""
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield wire
    finally:
        await wire.close()


def ask_each(url: str, inputs: int) -> None:
    """One caller asks once for each input, with the bytes of `callers`; every answer is right."""
    with httpx.Client(base_url=url, verify=PLAIN) as client:
        for number in range(inputs):
            body = b'{"input": [%r, 2]}' % (number / 16)
            answer = client.post("/predict", content=body, headers={"Content-Type": JSON})
            assert answer.json()["prediction"] == {"outputs": {"y": [number / 8, 4]}}, answer.text
