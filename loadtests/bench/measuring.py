"""One measurement: wake one server, compare its answers, load it, and believe nothing unproved."""

from __future__ import annotations

import asyncio
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import uvloop

from loadtests.bench import counters, generator, wrk
from loadtests.bench.answers import Answers, CheckError, known, problem
from loadtests.bench.bodies import Bodies, BodiesError, bodies_of
from loadtests.bench.dialects import DIALECTS, Dialect
from loadtests.bench.generator import LoadPlan, Run
from loadtests.bench.references import Contestant, Serving, spec_of
from loadtests.bench.servers import Fleet, Server, pinned
from loadtests.bench.stalls import share_stalled
from loadtests.bench.workloads import OUR_OWN, Workload
from loadtests.openloop.address import Address, Unreachable
from loadtests.openloop.arrivals import schedule
from loadtests.openloop.generator import Fired, Limits, TrialTooLarge, fire
from models.manifest import Manifest
from models.tensors import Array

WARM_UP_S = 1
LEAD_S = 0.5  # of an open loop: connections are made meanwhile, and no latency counts
BEFORE = 8  # known requests before the load, at once
PATIENCE_S = 30.0
MAX_OPEN_BYTES = 256 * 1024 * 1024  # of the requests of an open loop: they are made beforehand
JUDGED = 256  # answers of an open loop that are compared


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one server.

    Attributes:
        cpu_us: of all its processes, user and system, per request.
        checked: answers under load that were compared with known ones.
        lag_p99_ms: of the open loop's own generator; 0 in closed ones.
        stalled: before and after an open loop, the share of time in which the server's core,
            without a load but beside a busy one, did not run what wanted it; 0 for closed ones.
    """

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    checked: int
    lag_p99_ms: float = 0.0
    stalled: float = 0.0

    @property
    def busy(self) -> float:
        """Cores kept busy; well below one on one core, it was not the server that was the limit."""
        return self.cpu_us * self.requests_per_s / 1e6


@dataclass(frozen=True, slots=True)
class Subject:
    """Which server is measured by what.

    Attributes:
        seed: of the inputs; another one for each run.
    """

    contestant: Contestant
    workload: Workload
    seed: int


@dataclass(frozen=True, slots=True)
class Bench:
    """What all measurements of one model share."""

    fleet: Fleet
    serving: Serving
    manifest: Manifest
    answers: Answers
    seconds: int

    def closed(self, subject: Subject) -> Measured:
        """Load by a closed loop: each connection sends its next request when it has its answer.

        Raises:
            CheckError, LoadError, ServerError: if a number would not mean what it says.
        """
        workload, contestant = subject.workload, subject.contestant
        dialect = DIALECTS[contestant.server]
        bodies = bodies_of(workload, self.manifest, dialect, subject.seed)
        due_s = schedule("uniform", workload.checks_per_s, self.seconds, subject.seed)
        numbers = range(bodies.known_from, bodies.known_from + BEFORE + len(due_s))
        right = known(bodies, numbers, self.answers)
        core = None if workload.shared else self.serving.cores.generator
        spec = spec_of(contestant, workload, self.serving)
        with (
            self.fleet.awake(spec) as server,
            pinned(core),
            tempfile.TemporaryDirectory() as folder,
        ):
            load = _Load(
                server, bodies, dialect, None if workload.large else Path(folder) / "requests"
            )
            load.check(np.zeros(BEFORE), numbers[:BEFORE], right[:BEFORE])
            if workload.repeated:
                load.send_all_once()
            warmed = load.run(LoadPlan(workload.connections, WARM_UP_S), 0)
            tally = _Tally.begin(server, subject, self.manifest.model)
            run, fired = load.run_checked(
                LoadPlan(workload.connections, self.seconds),
                warmed.sent,
                due_s,
                [bodies.request(number) for number in numbers[BEFORE:]],
            )
            load.judge(fired, right[BEFORE:])
            cpu_us = tally.end(run.answered, run.sent, len(due_s))
        return Measured(run.requests_per_s, run.p50_ms, run.p99_ms, cpu_us, len(right))

    def open(self, subject: Subject, rate_per_s: float) -> Measured:
        """Load by an open loop: requests go out when they are due, Poisson arrivals.

        Latency counts from the moment at which a request was due.

        Raises:
            CheckError, ServerError: if a number would not mean what it says.
        """
        workload, contestant = subject.workload, subject.contestant
        dialect = DIALECTS[contestant.server]
        bodies = bodies_of(workload, self.manifest, dialect, subject.seed)
        room_s = MAX_OPEN_BYTES / (rate_per_s * bodies.request_bytes)
        seconds = min(LEAD_S + self.seconds, room_s)
        due_s = schedule("poisson", rate_per_s, seconds, subject.seed)
        requests = [bodies.request(number) for number in range(len(due_s))]
        judged = range(0, len(due_s), max(1, len(due_s) // JUDGED))
        right = known(bodies, judged, self.answers)
        spec = spec_of(contestant, workload, self.serving)
        stalled = share_stalled(self.serving.cores)
        with self.fleet.awake(spec) as server, pinned(self.serving.cores.generator):
            load = _Load(server, bodies, dialect, None)
            warm = range(bodies.known_from, bodies.known_from + BEFORE)
            load.check(np.zeros(BEFORE), warm, known(bodies, warm, self.answers))
            tally = _Tally.begin(server, subject, self.manifest.model)
            fired = load.fire(due_s, requests)
            cpu_us = tally.end(len(due_s), len(due_s), 0)
            load.judge_some(fired, judged, right)
        counted = due_s >= min(LEAD_S, seconds / 2)
        stalled = (stalled + share_stalled(self.serving.cores)) / 2
        latencies_ms = (fired.done_s - fired.due_s)[counted] * 1000
        lag_ms = (fired.noticed_s - fired.due_s)[counted] * 1000
        return Measured(
            requests_per_s=len(due_s) / seconds,
            p50_ms=float(np.percentile(latencies_ms, 50)),
            p99_ms=float(np.percentile(latencies_ms, 99)),
            cpu_us=cpu_us,
            checked=len(judged),
            lag_p99_ms=float(np.percentile(lag_ms, 99)),
            stalled=stalled,
        )


@dataclass(frozen=True, slots=True)
class _Load:
    """Requests to one server that is awake.

    Attributes:
        file: where wrk's requests are written; None where our own generator makes the load.
    """

    server: Server
    bodies: Bodies
    dialect: Dialect
    file: Path | None

    def check(self, due_s: Array, numbers: range, right: list[Array]) -> None:
        """Send requests whose answers are known, and compare."""
        self.judge(self.fire(due_s, [self.bodies.request(number) for number in numbers]), right)

    def send_all_once(self) -> None:
        """Each of the requests that will be repeated, so that the cache holds its answer."""
        whole = [template[0] for template in self.bodies.templates]
        fired = self.fire(np.zeros(len(whole)), whole)
        self._all_200(fired)

    def run(self, plan: LoadPlan, first: int) -> Run:
        """Load without checks beside, as a warm-up."""
        return uvloop.run(self._closed(plan, first))

    def run_checked(
        self, plan: LoadPlan, first: int, due_s: Array, requests: list[bytes]
    ) -> tuple[Run, Fired]:
        """Load, and send known requests meanwhile.

        Raises:
            CheckError: if an answer is not 200.
        """

        async def both() -> tuple[Run, Fired]:
            return await asyncio.gather(self._closed(plan, first), self._open(due_s, requests))

        run, fired = uvloop.run(both())
        if run.not_200:
            first_one = f"; the first: {run.first_not_200}" if run.first_not_200 else ""
            raise CheckError(
                f"{self.server.name}: {run.not_200} of {run.answered} answers were not 200"
                f"{first_one}; its log ends with:\n{self.server.log_tail()}"
            )
        if run.sent > run.answered + plan.connections + 1:  # at the end each may be owed one
            raise CheckError(
                f"{self.server.name}: {run.sent} requests were sent over {plan.connections} "
                f"connections, and {run.answered} answered"
            )
        if not run.answered or math.isnan(run.p50_ms):
            raise CheckError(f"{self.server.name} gave no answer in {run.seconds:g} s")
        if first + run.sent > self.bodies.known_from:
            raise BodiesError(f"all {self.bodies.known_from} different requests were used up")
        return run, fired

    def fire(self, due_s: Array, requests: list[bytes]) -> Fired:
        """Send requests when they are due, and wait for the answers."""
        return uvloop.run(self._open(due_s, requests))

    def judge(self, fired: Fired, right: list[Array]) -> None:
        """Compare the answers.

        Raises:
            CheckError: at the first wrong one.
        """
        self.judge_some(fired, range(len(right)), right)

    def judge_some(self, fired: Fired, indices: range, right: list[Array]) -> None:
        """Compare the answers to these requests; all must be 200.

        Raises:
            CheckError: at the first wrong one.
        """
        self._all_200(fired)
        for index, scores in zip(indices, right, strict=True):
            response = fired.responses[index]
            if response is None:
                continue  # told by _all_200
            wrong = problem(self.dialect, response.status, response.body, scores)
            if wrong is not None:
                raise CheckError(f"{self.server.name} answers wrongly: {wrong}")

    def _all_200(self, fired: Fired) -> None:
        for index, response in enumerate(fired.responses):
            if response is None or response.status != 200:
                what = (
                    fired.faults.get(index, "no answer")
                    if response is None
                    else f"{response.status}: {response.body[:300].decode(errors='replace')}"
                )
                raise CheckError(
                    f"{self.server.name} did not answer a good request: {what}; its log ends "
                    f"with:\n{self.server.log_tail()}"
                )

    async def _closed(self, plan: LoadPlan, first: int) -> Run:
        if wrk.find() is None or self.file is None:
            return await generator.load(self.server.port, self.bodies.pieces, first, plan)
        if not self.file.exists():
            self.bodies.write(self.file)
        return await wrk.load(self.server.port, self.file, first, plan)

    async def _open(self, due_s: Array, requests: list[bytes]) -> Fired:
        address = Address("127.0.0.1", self.server.port, "127.0.0.1")
        try:
            return await fire(address, due_s, requests, Limits(patience_s=PATIENCE_S))
        except (Unreachable, TrialTooLarge) as error:
            raise CheckError(f"{self.server.name} could not be asked: {error}") from error


@dataclass(frozen=True, slots=True)
class _Tally:
    """Processor time and our server's counters, from before the load."""

    server: Server
    subject: Subject
    model: str
    cpu_s: float
    before: counters.Counters | None

    @classmethod
    def begin(cls, server: Server, subject: Subject, model: str) -> _Tally:
        """Look now."""
        ours = subject.contestant.server in OUR_OWN
        before = counters.settled_counters(server, model) if ours else None
        return cls(server, subject, model, server.cpu_s(), before)

    def end(self, answered: int, sent: int, checks: int) -> float:
        """Look again; microseconds of processor time per answered request.

        Raises:
            CheckError: if the counters say that the answers did not come from where they should.
        """
        cpu_us = (self.server.cpu_s() - self.cpu_s) * 1e6 / max(1, answered + checks)
        if self.before is not None:
            added = counters.settled_counters(self.server, self.model).since(self.before)
            repeated, items = self.subject.workload.repeated, self.subject.workload.items
            check = counters.check_all_cached if repeated else counters.check_all_computed
            check(added, (answered + checks) * items, (sent + checks) * items)
        return cpu_us
