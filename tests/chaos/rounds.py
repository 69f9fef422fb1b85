"""One round: a server starts, gets a storm, settles, is compared with what is known, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.processes.shared_metrics import WRITE_S
from tests.chaos.aftermath import Holdings, ended, events
from tests.chaos.asking import Asker, Numbers
from tests.chaos.by_grpc import GrpcConversation
from tests.chaos.checker import Checker
from tests.chaos.clients import Client
from tests.chaos.conversation import Interruptions
from tests.chaos.journal import read_journal
from tests.chaos.operations import Operator
from tests.chaos.plan import DRAIN_S, ChaosPlan, Outcome
from tests.chaos.publishing import publish
from tests.chaos.reconcile import reconcile, reconcile_after_kill, reconcile_versions, sick_replicas
from tests.chaos.scrape import Scrape, get, scrape
from tests.chaos.truth import MODELS
from tests.chaos.versions import Versions
from tests.e2e.server import Server, free_port, running

MODULE = "tests.chaos.server"
MODELS_DIR, JOURNAL = "models", "journal"
CLIENTS = 40
FLOODERS = 4
SETTLE_S = 40.0
WARM_SHARE = 0.2  # of the requests come first: the allocator's first growth is not a leak


def run_round(plan: ChaosPlan, folder: Path) -> Outcome:
    """Run a round in an empty folder."""
    root, journal, log = folder / MODELS_DIR, folder / JOURNAL, folder / "log"
    for model in MODELS:
        publish(root, model, 1)
    versions = Versions(tuple(MODELS))
    outcome = Outcome(plan, Checker(versions))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CHAOS_SEED", str(plan.seed))
        environment.setenv("CHAOS_JOURNAL", str(journal))
        environment.setenv("CHAOS_HANGS", str(int(plan.hangs)))
        grpc_port = free_port()
        settings = {**plan.settings(), "grpc_port": str(grpc_port)}
        with running(root, log, MODULE, **settings) as server:
            asyncio.run(_Round(server, versions, outcome, folder, grpc_port).run())
            outcome.problems += ended(server, DRAIN_S + 20)
    return outcome


class _Round:
    def __init__(
        self, server: Server, versions: Versions, outcome: Outcome, folder: Path, grpc_port: int
    ) -> None:
        plan = outcome.plan
        self._grpc_port = grpc_port
        self._plan = plan
        self._journal = folder / JOURNAL
        self._hung_before = 0
        self._server = server
        self._versions = versions
        self._outcome = outcome
        self._checker = outcome.checker
        self._rng = random.Random(plan.seed)
        self._numbers = Numbers(self._rng)
        self._interruptions = Interruptions(plan.timeout_s * 2)
        self._operator = Operator(
            server.port, folder / MODELS_DIR, versions, self._rng, self._interruptions
        )
        self._names = itertools.count()

    async def run(self) -> None:
        """The story of a round."""
        port, figures, plan = self._server.port, self._outcome.figures, self._plan
        warm = round(plan.requests * WARM_SHARE)
        logger = "app.serving.lifecycle" if plan.workers == 1 else "app.processes.supervisor"
        while not events(self._server.log, logger)["ready"]:  # one of two may be so earlier
            await asyncio.sleep(0.05)
        if plan.workers > 1:  # what the others say of themselves may be as old as that
            await asyncio.sleep(1.5 * WRITE_S)
        await self._storm(warm)
        await self._until_idle(None)
        before, self._hung_before = Holdings.of(self._server), self._hung()
        began = time.monotonic()
        await self._storm(plan.requests - warm, kill=plan.workers > 1, enough=self._is_enough)
        figures["seconds"] = time.monotonic() - began
        await self._until_idle(before)
        self._compare(await scrape(port))
        ready = await get(port, "/health/ready")
        if ready.status != 200:
            self._problem(f"not ready afterwards: {ready.told()}")
        await self._stop()
        figures["requests"] = self._checker.counts.total()

    def _is_enough(self) -> bool:
        """Whether a version has taken over and another one was refused, if any are published."""
        seen = self._operator.seen
        return not self._plan.switches or (seen.switches > 0 and seen.refused > 0)

    async def _storm(
        self, requests: int, *, kill: bool = False, enough: Callable[[], bool] = lambda: True
    ) -> None:
        """All clients at once, and the operator beside them; so many requests, and until enough."""
        wanted = itertools.takewhile(lambda n: n < requests or not enough(), itertools.count())
        left = _until(wanted, time.monotonic() + self._plan.seconds)
        work = [asyncio.create_task(self._operator.look())]
        if self._plan.switches:
            work.append(asyncio.create_task(self._operator.switch()))
        if kill:
            work.append(asyncio.create_task(self._kill(self._rng.random() / 2)))
        try:
            await self._clients(left)
        finally:
            await _end(work)
        self._outcome.problems += self._operator.seen.problems
        self._operator.seen.problems.clear()

    async def _clients(self, left: Iterator[int]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._client().run(left))
            for _ in range(FLOODERS):
                group.create_task(self._client().flood(left))

    def _client(self) -> Client:
        name, seed = f"{self._plan.seed}-{next(self._names)}", self._rng.random()
        rng = random.Random(seed)
        asker = Asker(name, rng, self._numbers, self._versions)
        grpc = GrpcConversation(self._grpc_port, self._interruptions.patience_s)
        return Client(self._server.port, asker, self._checker, rng, self._interruptions, grpc)

    async def _kill(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._operator.kill_a_worker(self._server.process.pid)
        self._outcome.faults["worker killed"] += 1

    async def _until_idle(self, before: Holdings | None) -> None:
        """Nothing in flight, nothing queued, every replica well, and nothing held but before."""
        deadline = time.monotonic() + SETTLE_S
        while problems := await self._busy_with(before):
            if time.monotonic() > deadline:
                self._outcome.problems += problems
                return
            await asyncio.sleep(0.2)

    async def _busy_with(self, before: Holdings | None) -> list[str]:
        found, plan = await scrape(self._server.port), self._plan
        problems = []
        for name in ("torchlane_requests_in_flight", "torchlane_queue_depth_items"):
            if found.total(name) > 0:
                problems.append(f"{name} stays at {found.total(name):.0f}")
        wanted = plan.workers * plan.replicas
        if found.total("torchlane_replica_ready") != wanted:
            problems.append(f"{found.by('torchlane_replica_ready', 'replica')} are ready")
        struck = sick_replicas(read_journal(self._journal))
        if plan.workers == 1 and found.total("torchlane_replica_faults_total") < struck:
            problems.append("a replica that hangs was not found out")
        if before is not None and plan.workers == 1:
            now = Holdings.of(self._server)
            problems += now.grown(before, self._plan.cache_bytes, self._hung() - self._hung_before)
            self._outcome.figures["grown_mib"] = (now.rss - before.rss) / 2**20
        return problems

    def _hung(self) -> int:
        """Threads that do not come back."""
        return sum(each.faults["hangs"] for each in read_journal(self._journal).values())

    def _compare(self, found: Scrape) -> None:
        """What the server has counted with what clients were told and backends have done."""
        told, seen, ledgers = self._checker.told, self._operator.seen, read_journal(self._journal)
        self._checker.settle_late({model: each.hung for model, each in ledgers.items()})
        if self._plan.workers > 1:
            self._outcome.problems += reconcile_after_kill(found, told)
        else:
            self._outcome.problems += reconcile(found, told, ledgers)
            self._outcome.problems += reconcile_versions(found, seen.switches, seen.refused)
            struck, logged = sick_replicas(ledgers), events(self._server.log)
            if not struck == logged["replica_sick"] == logged["replica_recovered"]:
                self._problem(
                    f"{struck} replicas were made to fail, {logged['replica_sick']} were marked "
                    f"sick, {logged['replica_recovered']} recovered"
                )
            if seen.sick > struck or (struck > 0 and seen.sick == 0):
                self._problem(f"{struck} replicas failed, the metrics have shown {seen.sick}")
        for ledger in ledgers.values():
            self._outcome.faults += ledger.faults
        figures = self._outcome.figures
        figures |= {"looks": seen.looks, "switches": seen.switches, "refused": seen.refused}

    async def _stop(self) -> None:
        """SIGTERM at a random time of another storm."""
        self._numbers.strikes = False  # a forward that hangs would hold up the stop
        left = _until(itertools.count(), time.monotonic() + 60)
        storm = asyncio.create_task(self._clients(left))
        await asyncio.sleep(0.2 + self._rng.random() * 1.5)
        self._checker.stopping = True
        self._interruptions.stopped_at = time.monotonic()
        self._server.signal()
        await storm
        self._checker.settle_late({})

    def _problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)


def _until(left: Iterator[int], deadline: float) -> Iterator[int]:
    return itertools.takewhile(lambda _: time.monotonic() < deadline, left)


async def _end(work: list[asyncio.Task[None]]) -> None:
    """Cancel what is still at it; what has failed raises."""
    for each in work:
        each.cancel()
    for each in work:
        with contextlib.suppress(asyncio.CancelledError):
            await each
