"""One round: servers start, get a storm, settle, are compared with what is known, and end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.processes.shared_metrics import WRITE_S
from tests.chaos.aftermath import Holdings, ended, events, open_streams, remains
from tests.chaos.asking import Numbers
from tests.chaos.asking_handler import HandlerAsker
from tests.chaos.by_grpc import GrpcConversation
from tests.chaos.checker import Checker
from tests.chaos.clients import Client
from tests.chaos.conversation import Interruptions
from tests.chaos.journal import read_journal
from tests.chaos.operations import Operator
from tests.chaos.plan import DRAIN_S, ChaosPlan, Outcome
from tests.chaos.publishing import publish
from tests.chaos.reconcile import (
    reconcile,
    reconcile_after_kill,
    reconcile_handler,
    reconcile_versions,
    sick_replicas,
)
from tests.chaos.relayed import CALLS, EXAMPLES, PROCESSES, SCRATCH, Acts
from tests.chaos.relayed import JOURNAL as RELAYED
from tests.chaos.scrape import Scrape, get, scrape
from tests.chaos.truth import HANDLERS, MODELS
from tests.chaos.versions import Versions
from tests.e2e.balanced import cluster
from tests.e2e.names import Names
from tests.e2e.server import Server, free_port, running

MODULE = "tests.chaos.server"
MODELS_DIR, JOURNAL = "models", "journal"
CLIENTS = 40
FLOODERS = 4
IDLE_AT_ZERO = (
    "torchlane_requests_in_flight",
    "torchlane_queue_depth_items",
    "torchlane_answers_bytes",
    "torchlane_bodies_bytes",
)
AHEAD = 3  # that write hundreds of requests at once
SETTLE_S = 40.0
KEPT_CONNECTIONS = 8  # by a balancer, of each server
STOP_S = 6.0  # of a storm in which one of several servers stops
UNNAMED_S = 3.0  # longer than a balancer keeps an address that has left DNS
WARM_SHARE = 0.2  # of the requests come first: the allocator's first growth is not a leak


@dataclass(frozen=True)
class _Served:
    """Who answers.

    Attributes:
        servers: those that run.
        port: where clients connect: of the server, or of the balancer.
        grpc_port: the same for gRPC.
        names: DNS of a balancer.
    """

    servers: list[Server]
    port: int
    grpc_port: int
    names: Names | None = None


@contextlib.contextmanager
def _serving(plan: ChaosPlan, root: Path, folder: Path) -> Iterator[_Served]:
    """One server, or several behind the shipped balancer."""
    grpc_port = free_port()
    settings = {**plan.settings(), "grpc_port": str(grpc_port)}
    if not plan.servers:
        with running(root, folder / "log", MODULE, **settings) as server:
            yield _Served([server], server.port, grpc_port)
        return
    front = free_port()
    balancer = {"grpc_port": str(grpc_port), "grpc_bind": f"127.0.0.1:{front}"}
    balancer |= {"retry_on": plan.retry_on} if plan.retry_on else {}
    balancer["request_time"] = "4s"  # bodies that stall shall not take long
    with cluster(
        root, folder, plan.servers, module=MODULE, server=settings, balancer=balancer
    ) as found:
        yield _Served(list(found.servers), found.balancer.port, front, found.names)


def run_round(plan: ChaosPlan, folder: Path) -> Outcome:
    """Run a round in an empty folder."""
    root, journal = folder / MODELS_DIR, folder / JOURNAL
    for model in (*MODELS, *HANDLERS):
        publish(root, model, 1)
    (folder / SCRATCH).mkdir()
    versions = Versions((*MODELS, *HANDLERS))
    outcome = Outcome(plan, Checker(versions))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CHAOS_SEED", str(plan.seed))
        environment.setenv("CHAOS_JOURNAL", str(journal))
        environment.setenv("CHAOS_HANGS", str(int(plan.hangs)))
        environment.setenv("TMPDIR", str(folder / SCRATCH))
        with _serving(plan, root, folder) as served:
            asyncio.run(_Round(served, versions, outcome, folder).run())
            for server in served.servers:  # less one that was killed
                outcome.problems += ended(server, DRAIN_S + 20)
            outcome.problems += remains(folder, plan)
    return outcome


class _Round:
    def __init__(self, served: _Served, versions: Versions, outcome: Outcome, folder: Path) -> None:
        plan = outcome.plan
        self._served = served
        self._servers = served.servers
        self._plan = plan
        self._journal = folder / JOURNAL
        self._hung_before = 0
        self._versions = versions
        self._outcome = outcome
        self._checker = outcome.checker
        self._rng = random.Random(plan.seed)
        self._numbers = Numbers(self._rng)
        self._interruptions = Interruptions(plan.timeout_s * 2)
        self._operator = Operator(
            self._servers, folder / MODELS_DIR, versions, self._rng, self._interruptions
        )
        self._names = itertools.count()

    async def run(self) -> None:
        """The story of a round."""
        figures, plan = self._outcome.figures, self._plan
        warm = round(plan.requests * WARM_SHARE)
        logger = "app.serving.lifecycle" if plan.workers == 1 else "app.processes.supervisor"
        for server in self._servers:
            while not events(server.log, logger)["ready"]:  # one of two may be so earlier
                await asyncio.sleep(0.05)
        while self._handlers_down(await scrape(self._servers)):  # it comes after its models
            await asyncio.sleep(0.2)
        if plan.workers > 1:  # what the others say of themselves may be as old as that
            await asyncio.sleep(1.5 * WRITE_S)
        await self._storm(warm)
        await self._until_idle(None)
        before, self._hung_before = list(map(Holdings.of, self._servers)), self._hung()
        began = time.monotonic()
        await self._storm(plan.requests - warm, kill=plan.kills, enough=self._is_enough)
        figures["seconds"] = time.monotonic() - began
        await self._until_idle(before)
        self._compare(await scrape(self._servers))
        for server in self._servers:
            ready = await get(server, "/health/ready")
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
        elif self._served.names is not None:
            work.append(asyncio.create_task(self._rename(self._served.names)))
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
            for _ in range(AHEAD):
                group.create_task(self._client().flood_ahead(left))

    def _client(self) -> Client:
        name, seed = f"{self._plan.seed}-{next(self._names)}", self._rng.random()
        rng = random.Random(seed)
        asker = HandlerAsker(name, rng, self._numbers, self._versions)
        patience_s, again = self._interruptions.patience_s, self._plan.servers > 0
        grpc = GrpcConversation(self._served.grpc_port, patience_s, again=again)
        return Client(self._served.port, asker, self._checker, rng, self._interruptions, grpc)

    async def _kill(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._operator.kill_one()
        self._outcome.faults["server killed" if self._plan.servers else "worker killed"] += 1

    async def _rename(self, names: Names) -> None:
        """One server after the other leaves DNS for a while, which no client may notice."""
        every = names.addresses
        try:
            for number in itertools.count():
                gone = every[number % len(every)]
                names.addresses = tuple(each for each in every if each != gone)
                self._outcome.faults["server out of DNS"] += 1
                await asyncio.sleep(UNNAMED_S)
                names.addresses = every
                await asyncio.sleep(UNNAMED_S)
        finally:
            names.addresses = every

    async def _until_idle(self, before: list[Holdings] | None) -> None:
        """Nothing in flight, nothing queued, every replica well, and nothing held but before."""
        deadline = time.monotonic() + SETTLE_S
        while problems := await self._busy_with(before):
            if time.monotonic() > deadline:
                self._outcome.problems += problems
                return
            await asyncio.sleep(0.2)

    async def _busy_with(self, before: list[Holdings] | None) -> list[str]:
        found, plan = await scrape(self._servers), self._plan
        problems = []
        for name in IDLE_AT_ZERO:
            if found.total(name) > 0:
                problems.append(f"{name} stays at {found.total(name):.0f}")
        wanted = len(self._servers) * plan.workers * plan.replicas
        if found.total("torchlane_replica_ready") != wanted:
            problems.append(f"{found.by('torchlane_replica_ready', 'replica')} are ready")
        if down := self._handlers_down(found):
            problems.append(f"{down:.0f} processes of handlers are not ready")
        struck = sick_replicas(read_journal(self._journal))
        if not plan.kills and found.total("torchlane_replica_faults_total") < struck:
            problems.append("a replica that hangs was not found out")
        if before is not None and not plan.kills:
            hung, grown_mib = self._hung() - self._hung_before, 0.0
            for server, held in zip(self._servers, before, strict=True):
                now = Holdings.of(server)
                kept = KEPT_CONNECTIONS if plan.servers else 0
                problems += now.grown(held, self._plan.cache_bytes, hung, kept)
                grown_mib = max(grown_mib, (now.rss - held.rss) / 2**20)
            self._outcome.figures["grown_mib"] = grown_mib
        return problems

    def _handlers_down(self, found: Scrape) -> float:
        """How many processes of the handlers are not ready."""
        wanted = len(self._servers) * self._plan.workers * PROCESSES * len(HANDLERS)
        return wanted - sum(
            found.total("torchlane_model_replicas", model=each) for each in HANDLERS
        )

    def _hung(self) -> int:
        """Threads that do not come back."""
        return sum(each.faults["hangs"] for each in read_journal(self._journal).values())

    def _compare(self, found: Scrape) -> None:
        """What the server has counted with what clients were told and backends have done."""
        told, seen, ledgers = self._checker.told, self._operator.seen, read_journal(self._journal)
        acts = Acts(self._journal.with_name(RELAYED))
        self._checker.settle_late({model: each.hung for model, each in ledgers.items()}, acts)
        servers = len(self._servers)
        self._outcome.problems += open_streams(acts)
        replaced = 0
        for handler, called in CALLS.items():
            versions = self._versions.newest(handler)
            replaced += PROCESSES * servers * (versions - 1)
            for model in called:
                told.unknown_items[model] += EXAMPLES * versions * servers
        if self._plan.kills:
            self._outcome.problems += reconcile_after_kill(
                found, told, balanced=self._plan.servers > 0
            )
        else:
            self._outcome.problems += reconcile(
                found, told, ledgers, balanced=self._plan.servers > 0
            )
            self._outcome.problems += reconcile_versions(
                found, seen.switches, seen.refused, servers
            )
            self._outcome.problems += reconcile_handler(found, told, acts, replaced)
            struck = sick_replicas(ledgers)
            logged = sum((events(each.log) for each in self._servers), Counter[str]())
            if not struck == logged["replica_sick"] == logged["replica_recovered"]:
                self._problem(
                    f"{struck} replicas were made to fail, {logged['replica_sick']} were marked "
                    f"sick, {logged['replica_recovered']} recovered"
                )
            if seen.sick > struck or (struck > 0 and seen.sick == 0):
                self._problem(f"{struck} replicas failed, the metrics have shown {seen.sick}")
        for ledger in ledgers.values():
            self._outcome.faults += ledger.faults
        self._outcome.faults += Counter(f"handler {each.what.name.lower()}" for each in acts.acts)
        restarts = found.by("torchlane_handler_restarts_total", "cause")
        self._outcome.restarts += Counter({cause: int(n) for (cause,), n in restarts.items()})
        figures = self._outcome.figures
        figures |= {"looks": seen.looks, "switches": seen.switches, "refused": seen.refused}
        figures["live_ms"] = seen.live_s * 1000
        figures["unread_mib"] = seen.unread_bytes / 2**20

    async def _stop(self) -> None:
        """SIGTERM at a random time of another storm; behind a balancer nobody may notice."""
        self._numbers.strikes = False  # a forward that hangs would hold up the stop
        first, others = self._servers[0], self._servers[1:]
        left = _until(itertools.count(), time.monotonic() + (STOP_S if others else 60))
        storm = asyncio.create_task(self._clients(left))
        await asyncio.sleep(0.2 + self._rng.random() * 1.5)
        if others:
            self._checker.one_stops = True
        else:
            self._checker.stopping = True
            self._interruptions.stopped_at = time.monotonic()
        first.signal()
        await storm
        for server in others:
            server.signal()
        self._checker.settle_late({}, Acts(self._journal.with_name(RELAYED)))

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
