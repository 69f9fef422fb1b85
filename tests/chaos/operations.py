"""The operator of a server under chaos: looks, publishes versions good and bad, kills a worker."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.chaos.connection import Cut
from tests.chaos.conversation import Interruptions
from tests.chaos.publishing import OF_MODELS, Damage, publish
from tests.chaos.scrape import get, model_info, scrape
from tests.chaos.truth import HANDLERS, MODELS
from tests.chaos.versions import Versions
from tests.e2e.server import Server

LOOK_S = 0.3
LIVE_S = 4.0  # for GET /health/live, of a client that is as busy as the server
NOTICED_S = 120.0  # for a version to be noticed, proved and served


@dataclass
class Seen:
    """What the operator has seen.

    Attributes:
        looks: at the metrics.
        sick: how often a replica was seen to become not ready.
        switches: good versions that were seen to be served.
        refused: bad versions that were seen to be reported.
        unread_bytes: of answers, at most at a time.
        live_s: seconds that GET /health/live took, at most.
        problems: what must not be.
    """

    looks: int = 0
    sick: int = 0
    switches: int = 0
    refused: int = 0
    unread_bytes: float = 0.0
    live_s: float = 0.0
    problems: list[str] = field(default_factory=list)


class Operator:
    """Works on a server until it is cancelled.

    Args:
        servers: those that run; one that is killed is taken out.
        root: its repository.
        versions: what is published is told here.
        rng: draws what is done.
        interruptions: whoever kills a worker says so there.
    """

    def __init__(
        self,
        servers: list[Server],
        root: Path,
        versions: Versions,
        rng: random.Random,
        interruptions: Interruptions,
    ) -> None:
        self._servers = servers
        self._interruptions = interruptions
        self._root = root
        self._versions = versions
        self._rng = rng
        self._newest = dict.fromkeys((*MODELS, *HANDLERS), 1)  # good or bad
        self.seen = Seen()

    async def look(self) -> None:
        """Scrape the metrics again and again: it must stay ready, replicas come and go."""
        ready: dict[tuple[str, ...], float] = {}
        while True:
            try:
                await self._look_whether_live()
                found = await scrape(self._servers)
            except (Cut, ConnectionError) as error:
                if not self._interruptions.excuse(time.monotonic()):
                    self.seen.problems.append(f"the metrics could not be read: {error}")
                continue
            self.seen.looks += 1
            unread = found.total("torchlane_answers_bytes")
            self.seen.unread_bytes = max(self.seen.unread_bytes, unread)
            # One that takes the place of a killed one is not ready at first.
            if (
                found.total("torchlane_ready") < len(self._servers)
                and not self._interruptions.killed_at
            ):
                self.seen.problems.append("torchlane_ready was 0 although replicas were well")
            now = found.by("torchlane_replica_ready", "replica")
            self.seen.sick += sum(ready.get(each, 0) > value for each, value in now.items())
            ready = now
            await asyncio.sleep(LOOK_S)

    async def _look_whether_live(self) -> None:
        for server in self._servers:
            began = time.monotonic()
            live = await get(server, "/health/live")
            took_s = time.monotonic() - began
            self.seen.live_s = max(self.seen.live_s, took_s)
            if live.status != 200 or took_s > LIVE_S:
                self.seen.problems.append(f"after {took_s:.1f} s not live: {live.told()}")

    async def switch(self) -> None:
        """Publish one version after the other; the server must serve the good ones and no other."""
        while True:
            model = self._rng.choice((*MODELS, *HANDLERS))
            self._newest[model] += 1
            version = self._newest[model]
            kinds = tuple(Damage) if model in HANDLERS else OF_MODELS
            damage = self._rng.choice(kinds) if self._rng.random() < 0.4 else None
            if damage is None:
                self._versions.published(model, version)
            await asyncio.to_thread(publish, self._root, model, version, damage)
            if not await self._noticed(model, version, good=damage is None):
                what = damage.value if damage else "good"
                self.seen.problems.append(f"{model}/{version} ({what}) was not noticed")
            await asyncio.sleep(self._rng.random())

    async def _noticed(self, model: str, version: int, *, good: bool) -> bool:
        deadline = time.monotonic() + NOTICED_S
        while time.monotonic() < deadline:
            told = [await model_info(each, model) for each in self._servers]
            if good and all(each["version"] == version for each in told):
                self._versions.seen(model, version)
                self.seen.switches += 1
                return True
            listed = [entry for each in told for entry in each["versions"]]
            states = [entry["state"] for entry in listed if entry["version"] == version]
            if not good and states == ["failed"] * len(told):
                self.seen.refused += 1
                return True
            await asyncio.sleep(0.05)
        return False

    def kill_one(self) -> None:
        """End one process of several, as the kernel does when memory runs out."""
        self._interruptions.killed_at.append(time.monotonic())
        if len(self._servers) > 1:
            killed = self._rng.choice(self._servers)
            self._servers.remove(killed)
            killed.process.kill()
            return
        (server,) = self._servers
        self._rng.choice(psutil.Process(server.process.pid).children()).kill()
