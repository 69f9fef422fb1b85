"""One measurement: wake one server, compare its answers, load it, and believe nothing unproved."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtests.bench import counters, wrk
from loadtests.bench.answers import CheckError, JudgedBodies, Right
from loadtests.bench.bodies import Bodies, BodiesError, bodies_of
from loadtests.bench.dialects import DIALECTS
from loadtests.bench.launch import Contestant, Serving, spec_of
from loadtests.bench.servers import Fleet, Server, pinned
from loadtests.bench.workloads import OUR_OWN, Workload
from loadtests.bench.wrk import LoadPlan, Run
from loadtests.openloop.arrivals import schedule
from loadtests.openloop.generator import Limits
from loadtests.openloop.sender import Sender
from models.manifest import Manifest
from models.tensors import Array

WARM_UP_S = 1
BEFORE = 8  # known requests before the load, at once
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one server.

    Attributes:
        cpu_us: of all its processes, user and system, per request.
        checked: answers under load that were compared with known ones.
    """

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    checked: int

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
    right: Right
    seconds: int

    def measured(self, subject: Subject) -> Measured:
        """Load by a closed loop: each connection sends its next request when it has its answer.

        Raises:
            LoadTestError: if a number would not mean what it says.
        """
        workload = subject.workload
        bodies = self._bodies(subject)
        due_s = schedule("uniform", workload.checks_per_s, self.seconds, subject.seed)
        plan = LoadPlan(workload.connections, self.seconds)
        core = None if workload.shared else self.serving.cores.generator
        spec = spec_of(subject.contestant, workload, self.serving)
        with (
            self.fleet.awake(spec) as server,
            pinned(core),
            tempfile.TemporaryDirectory() as folder,
        ):
            known = itertools.count(bodies.known_from)
            self._check(server, subject, bodies, known, np.zeros(BEFORE))
            if workload.repeated:  # so that the cache holds the answers
                each_once = iter(range(len(bodies.templates)))
                alike = bodies.one_after_the_other()
                self._check(server, subject, alike, each_once, np.zeros(len(bodies.templates)))
            file = Path(folder) / "requests"
            bodies.write(file)
            warmed = wrk.load(server.port, file, 0, LoadPlan(workload.connections, WARM_UP_S))
            tally = _Tally.begin(server, subject, self.manifest.model)
            with wrk.loading(server.port, file, warmed.sent, plan) as load:
                self._check(server, subject, bodies, known, due_s)
                run = load.result()
            _check_run(server, run, plan)
            if warmed.sent + run.sent > bodies.known_from:
                raise BodiesError(f"all {bodies.known_from} different requests were used up")
            cpu_us = tally.end(run.answered, run.sent, len(due_s))
        return Measured(run.requests_per_s, run.p50_ms, run.p99_ms, cpu_us, BEFORE + len(due_s))

    def _bodies(self, subject: Subject) -> Bodies:
        dialect = DIALECTS[subject.contestant.server]
        return bodies_of(subject.workload, self.manifest, dialect, subject.seed)

    def _check(
        self,
        server: Server,
        subject: Subject,
        bodies: Bodies,
        numbers: Iterator[int],
        due_s: Array,
    ) -> None:
        """Send requests when they are due, and compare the answers.

        Raises:
            CheckError: if one is not right.
        """
        dialect = DIALECTS[subject.contestant.server]
        requests = JudgedBodies(bodies, dialect, self.right, numbers=numbers)
        sender = Sender(server.address, requests, "poisson", Limits(patience_s=PATIENCE_S))
        sender.prepare_at(due_s)
        outcomes, _ = sender.send()
        reason = next(filter(None, outcomes.reason), None)
        if reason is not None:
            raise CheckError(
                f"{server.name} did not answer a good request rightly: {reason}; its log ends "
                f"with:\n{server.log_tail()}"
            )


def _check_run(server: Server, run: Run, plan: LoadPlan) -> None:
    """Believe a closed loop.

    Raises:
        CheckError: if an answer was not 200, or stayed out.
    """
    if run.not_200:
        raise CheckError(
            f"{server.name}: {run.not_200} of {run.answered} answers were not 200; its log ends "
            f"with:\n{server.log_tail()}"
        )
    if run.sent > run.answered + plan.connections + 1:  # at the end each may be owed one
        raise CheckError(
            f"{server.name}: {run.sent} requests were sent over {plan.connections} connections, "
            f"and {run.answered} answered"
        )
    if not run.answered or math.isnan(run.p50_ms):
        raise CheckError(f"{server.name} gave no answer in {run.seconds:g} s")


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
            items = self.subject.workload.items
            least, most = (answered + checks) * items, (sent + checks) * items
            cached = self.subject.workload.repeated > 0
            counters.check(added, least, most, cached=cached)
        return cpu_us
