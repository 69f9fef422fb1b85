"""One turn: wake one server, compare its answers, load it, and check all counts."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from loadtests.bench import counters, wrk
from loadtests.bench.answers import (
    LOSSY_TOLERANCE,
    TOLERANCE,
    CheckError,
    JudgedBodies,
    Right,
)
from loadtests.bench.bodies import Bodies, BodiesError, bodies_of
from loadtests.bench.dialects import dialect_of
from loadtests.bench.launch import Contestant, Serving, spec_of
from loadtests.bench.servers import Fleet, Server, pinned
from loadtests.bench.workloads import OUR_OWN, PRECISIONS, Workload
from loadtests.bench.wrk import LoadPlan, Run
from loadtests.openloop.arrivals import schedule
from loadtests.openloop.generator import Limits
from loadtests.openloop.sender import Outcomes, Sender, TrialPlan
from models.manifest import Manifest
from models.tensors import Array

WARM_UP_S = 1
BEFORE = 8  # simultaneous known requests before the load
PATIENCE_S = 30.0
OPEN = Limits(connections=4096, patience_s=2.0)  # of an open loop
BATCH_S, TEXT_BATCH_S = 0.1, 1.0  # no batch takes longer


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn of one server.

    Attributes:
        cpu_us: of all its processes, user and system, per request.
        checked: answers under load that were compared with known answers.
    """

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    checked: int

    @property
    def busy(self) -> float:
        """Busy cores; well below one on one core, the server was not the limit."""
        return self.cpu_us * self.requests_per_s / 1e6


@dataclass(slots=True)
class Requests:
    """The requests to one process in one workload, over all its turns; each is sent once.

    Attributes:
        known: requests whose answers are compared.
        file: with the other requests, for wrk.
        sent: number of sent other requests.
    """

    bodies: Bodies
    known: JudgedBodies
    file: Path
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Bench:
    """The common part of all measurements of one model.

    Attributes:
        seconds: measured per turn.
        scratch: a folder for files.
    """

    fleet: Fleet
    serving: Serving
    manifest: Manifest
    right: Right
    seconds: int
    scratch: Path
    _requests: dict[tuple[str, int, str], Requests] = field(default_factory=dict)

    @property
    def precisions(self) -> frozenset[str]:
        """The precisions of the artifact's variants."""
        return frozenset(variant.precision for variant in self.manifest.variants.values())

    def check_compiled(self, contestant: Contestant, workload: Workload) -> None:
        """Check that our running server reports machine code.

        Raises:
            CheckError: if it does not.
        """
        with self.fleet.awake(spec_of(contestant, workload, self.serving)) as server:
            counters.check_compiled(counters.page_of(server))

    def workers(self, contestant: Contestant, workload: Workload) -> int:
        """Return how many processes of our running server serve."""
        with self.fleet.awake(spec_of(contestant, workload, self.serving)) as server:
            return server.workers

    def measured(self, contestant: Contestant, workload: Workload, seed: int) -> Measured:
        """Load in a closed loop: each connection sends its next request after its last answer.

        Args:
            contestant: the server; its first turn includes a warm-up and a check of its answers.
            workload: the requests.
            seed: of the inputs, which the first turn creates for all turns; each is sent once.

        Raises:
            LoadTestError: if a number would be invalid.
        """
        core = None if workload.shared else self.serving.cores.generator
        spec = spec_of(contestant, workload, self.serving)
        with self.fleet.awake(spec) as server, pinned(core):
            requests = self._requests_of(server, contestant, workload, seed)
            ours = contestant.server in OUR_OWN
            batch_s = TEXT_BATCH_S if workload.is_text else BATCH_S
            settled = partial(counters.settled_counters, server, self.manifest.model, batch_s)
            before = settled() if ours else None
            run, cpu_us, checks = self._loaded(server, workload, requests)
            if before is not None:
                added = settled().since(before)
                least, most = (run.answered + checks), (run.sent + checks)
                cached = workload.repeated > 0
                counters.check(added, least * workload.items, most * workload.items, cached=cached)
        return Measured(run.requests_per_s, run.p50_ms, run.p99_ms, cpu_us, checks)

    def offered(
        self, contestant: Contestant, workload: Workload, plan: TrialPlan
    ) -> tuple[Outcomes, float]:
        """Load in an open loop: requests are sent when due, regardless of earlier ones.

        Args:
            contestant: the server.
            workload: the requests.
            plan: of the trial; its seed is also that of the inputs.

        Returns:
            the outcomes of the requests, and microseconds of processor time per request.
        """
        dialect = dialect_of(contestant.server, workload, self.manifest)
        bodies = bodies_of(workload, self.manifest, dialect, plan.seed)
        requests = JudgedBodies(bodies, dialect, self.right)
        with self.fleet.awake(spec_of(contestant, workload, self.serving)) as server:
            sender = Sender(server.address, requests, "poisson", OPEN)
            sender.prepare(plan)
            before_s = server.cpu_s()
            with pinned(None if workload.shared else self.serving.cores.generator):
                outcomes, _ = sender.send()
            cpu_us = (server.cpu_s() - before_s) * 1e6 / max(1, len(outcomes.due_s))
        return outcomes, cpu_us

    def _requests_of(
        self, server: Server, contestant: Contestant, workload: Workload, seed: int
    ) -> Requests:
        """Return the requests to a process, which is warmed up the first time."""
        key = contestant.key, server.process.pid, workload.name
        if (found := self._requests.get(key)) is not None:
            return found
        for each in [each for each in self._requests if each[2] != workload.name]:
            del self._requests[each]
        dialect = dialect_of(contestant.server, workload, self.manifest)
        bodies = bodies_of(workload, self.manifest, dialect, seed)
        tolerance = LOSSY_TOLERANCE if contestant.server in PRECISIONS else TOLERANCE
        numbers = itertools.count(bodies.known_from)
        known = JudgedBodies(bodies, dialect, self.right, numbers=numbers, tolerance=tolerance)
        _check(server, workload, known, np.zeros(BEFORE))
        if workload.repeated:  # fill the cache
            each_once = JudgedBodies(bodies.one_after_the_other(), dialect, self.right)
            _check(server, workload, each_once, np.zeros(len(bodies.templates)))
        requests = Requests(bodies, known, self.scratch / contestant.key)
        bodies.write(requests.file)
        with _loading(server, workload, requests, WARM_UP_S) as load:
            requests.sent += load().sent
        self._requests[key] = requests
        return requests

    def _loaded(
        self, server: Server, workload: Workload, requests: Requests
    ) -> tuple[Run, float, int]:
        """Return the run, microseconds of processor time per answer, and known answers."""
        due_s = schedule("uniform", workload.checks_per_s, self.seconds, 0)
        before_s = server.cpu_s()
        with _loading(server, workload, requests, self.seconds) as load:
            _check(server, workload, requests.known, due_s)
            run = load()
        cpu_us = (server.cpu_s() - before_s) * 1e6 / max(1, run.answered + len(due_s))
        _check_run(run, workload.connections)
        requests.sent += run.sent
        if requests.sent > requests.bodies.known_from:
            raise BodiesError(f"all {requests.bodies.known_from} different requests were used up")
        return run, cpu_us, len(due_s)


def _loading(
    server: Server, workload: Workload, requests: Requests, seconds: int
) -> contextlib.AbstractContextManager[Callable[[], Run]]:
    """Load the server during the block, with the transport's generator."""
    plan = LoadPlan(workload.connections, seconds)
    if workload.body == "grpc":
        from loadtests.bench import grpc_load  # noqa: PLC0415  # its package is an extra

        return grpc_load.loading(server.other_port, requests.bodies, requests.sent, plan)
    return wrk.loading(server.port, requests.file, requests.sent, plan)


def _check(server: Server, workload: Workload, requests: JudgedBodies, due_s: Array) -> None:
    """Send requests when due, and compare the answers.

    Raises:
        CheckError: if an answer is wrong.
    """
    if workload.body == "grpc":
        from loadtests.bench import grpc_load  # noqa: PLC0415  # its package is an extra

        reasons: Sequence[str | None] = grpc_load.problems(server.other_port, requests, due_s)
    else:
        sender = Sender(server.address, requests, "poisson", Limits(patience_s=PATIENCE_S))
        sender.prepare_at(due_s)
        outcomes, _ = sender.send()
        reasons = outcomes.reason
    reason = next(filter(None, reasons), None)
    if reason is not None:
        raise CheckError(f"a valid request got a wrong answer: {reason}")


def _check_run(run: Run, connections: int) -> None:
    """Check the counts of a closed loop.

    Raises:
        CheckError: if an answer was missing or not 200.
    """
    if run.not_200:
        raise CheckError(f"{run.not_200} of {run.answered} answers were not 200")
    if run.sent > run.answered + connections + 1:  # at the end each may lack one answer
        raise CheckError(
            f"{run.sent} requests were sent over {connections} connections, and "
            f"{run.answered} answered"
        )
    if not run.answered or math.isnan(run.p50_ms):
        raise CheckError(f"no answer in {run.seconds:g} s")
