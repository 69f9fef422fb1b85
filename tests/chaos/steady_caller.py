"""A caller in an open loop that checks every answer and times every wait."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import httpx
import torch
from torch import nn

from tests.chaos.starvation import Starvation
from tests.chaos.versions import Versions
from tests.e2e.server import PLAIN, Server

STEADY, OTHER = "steady", "other"
TIMES: Mapping[str, int] = MappingProxyType({STEADY: 2, OTHER: 1000})
FAILS_FROM = 1 << 20  # an item whose first value is at least this fails
MOST = 1 << 14  # of the other values: times any factor, float32 holds it
RATE = 50  # requests a second
KINDS = (*("live",) * 2, OTHER, "failing", *(STEADY,) * 6)  # one in turn
FAILING_PAUSE_S = 0.02  # between the additional items that fail
CLIENTS = 8
PATIENCE_S = 20.0
STALL_S = 1.0
KILL_S = 1.0  # for so long after a kill, its callers may notice it
PROBLEMS_LISTED = 5  # of each kind


class Scaled(nn.Module):
    """x [n, 2] -> factor * x; items from `FAILS_FROM` on fail."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.fails_from = FAILS_FROM

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        if bool((x >= self.fails_from).any()):
            raise ValueError("an item that fails")
        return x * self.factor


def factor_of(model: str, version: int) -> int:
    """What a version multiplies by: whole numbers, which float32 holds."""
    return TIMES[model] + version


@dataclass
class Tally:
    """What the caller noticed.

    Attributes:
        answers: by kind of request, and `cut by a kill`.
        problems: what must not be; the first ones of each kind in words.
        found: how many there were of each kind.
        longest_s: that an answer took.
        late_on_busy_machine: answers that were late because the server got no processor.
        kills: when workers were killed.
    """

    answers: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    late_on_busy_machine: int = 0
    kills: list[float] = field(default_factory=list)

    def problem(self, kind: str, told: str) -> None:
        """Count one, and describe it if it is one of the first of its kind."""
        self.found[kind] += 1
        if self.found[kind] <= PROBLEMS_LISTED:
            self.problems.append(f"{time.strftime('%H:%M:%S')} {kind}: {told}")


class SteadyCaller:
    """Sends requests at a fixed rate, whatever becomes of the others.

    Args:
        server: to ask.
        rng: draws the items.
    """

    def __init__(self, server: Server, rng: random.Random) -> None:
        self.tally = Tally()
        self.versions = Versions((STEADY, OTHER))
        self.starvation = Starvation(server.process.pid)
        self.happening: list[str] = []  # what goes wrong now, for reports
        self._rng = rng
        client = functools.partial(
            httpx.AsyncClient, base_url=server.url, verify=PLAIN, timeout=PATIENCE_S
        )
        self._fresh = client(limits=httpx.Limits(max_keepalive_connections=0))
        self._kept = [client() for _ in range(CLIENTS)]  # one after the other, for all workers
        self._turns = itertools.cycle(self._kept)
        self._ticks: deque[tuple[float, float]] = deque(maxlen=100 * RATE)

    async def run(self, seconds: float) -> None:
        """Ask for this long."""
        due = time.monotonic()
        end = due + seconds
        async with asyncio.TaskGroup() as group:
            for kind in itertools.cycle(KINDS):
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                self._ticks.append((due, time.monotonic()))
                group.create_task(self._ask(kind))
                due += 1 / RATE
                if due > end:
                    break

    async def fail(self, seconds: float) -> None:
        """Send items that fail, each after the answer to the one before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await self._ask("failing")
            await asyncio.sleep(FAILING_PAUSE_S)

    async def close(self) -> None:
        """Close all connections."""
        for client in (self._fresh, *self._kept):
            await client.aclose()

    async def _ask(self, kind: str) -> None:
        sent = time.monotonic()
        x = [self._rng.randrange(MOST), self._rng.randrange(MOST)]
        if kind == "failing":
            x[1] = FAILS_FROM
        item = {"input": x}
        try:
            if kind == "live":
                answer = await self._fresh.get("/health/live")
            else:
                model = OTHER if kind == OTHER else STEADY
                answer = await next(self._turns).post(f"/models/{model}/predict", json=item)
        except httpx.TransportError as error:
            waited = time.monotonic() - sent
            if any(sent - KILL_S < killed < sent + waited for killed in self.tally.kills):
                self.tally.answers["cut by a kill"] += 1
            else:
                self._problem("unanswered", f"{kind}: {error!r}", waited)
            return
        now = time.monotonic()
        await asyncio.sleep(0)  # a tick that was due before is noted
        waited = self._waited(sent, now)
        self.tally.longest_s = max(self.tally.longest_s, waited)
        self.tally.answers[kind] += 1
        if waited > STALL_S:
            starved = self.starvation.since(sent)
            if waited - starved > STALL_S:
                self._problem("late", f"{kind}, {starved:.2f} s without a processor", waited)
            else:
                self.tally.late_on_busy_machine += 1
        if why := self._wrong(kind, x, answer, sent):
            verdict = "refused" if answer.status_code in (404, 503) else "wrong"
            self._problem(verdict, f"{kind}: {why}; {answer} {answer.text[:500]}", waited)

    def _problem(self, kind: str, told: str, waited: float) -> None:
        during = ", ".join(self.happening) or "nothing"
        self.tally.problem(kind, f"{told}; after {waited:.2f} s, during: {during}")

    def _waited(self, sent: float, now: float) -> float:
        """Seconds, without the longest time in which this process itself did not run."""
        own = (at - max(due, sent) for due, at in self._ticks if at > sent)
        return now - sent - max(0.0, *own, 0.0)

    def _wrong(self, kind: str, x: list[int], answer: httpx.Response, sent: float) -> str | None:
        """What is wrong with an answer; None: nothing."""
        wanted = 500 if kind == "failing" else 200
        if answer.status_code != wanted:
            return f"{wanted} was expected"
        if kind in ("live", "failing"):
            return None
        told = answer.json()
        factor = factor_of(kind, told["version"])
        if told["prediction"]["outputs"]["y"] != [factor * each for each in x]:
            return f"{x} times {factor} was expected"
        return self.versions.why_not(kind, told["version"], None, sent)
