"""One measurement: wake one server, compare its answers, load it, and check all counts."""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from loadtests.openloop.sender import Sender
from models.manifest import Manifest
from models.tensors import Array

WARM_UP_S = 1
BEFORE = 8  # known requests before the load, at once
PATIENCE_S = 30.0
BATCH_S, TEXT_BATCH_S = 0.1, 1.0  # no batch takes longer
Numbered = tuple[Bodies, Path, int]  # requests, the file that has them, and the number of the first


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
class Bench:
    """What all measurements of one model share."""

    fleet: Fleet
    serving: Serving
    manifest: Manifest
    right: Right
    seconds: int

    @property
    def precisions(self) -> frozenset[str]:
        """Those of the artifact's variants."""
        return frozenset(variant.precision for variant in self.manifest.variants.values())

    def measured(self, contestant: Contestant, workload: Workload, seed: int) -> Measured:
        """Load by a closed loop: each connection sends its next request when it has its answer.

        Args:
            contestant: the server.
            workload: what it is asked.
            seed: of the inputs; another one for each run.

        Raises:
            LoadTestError: if a number would not mean what it says.
        """
        dialect = dialect_of(contestant.server, workload, self.manifest)
        bodies = bodies_of(workload, self.manifest, dialect, seed)
        core = None if workload.shared else self.serving.cores.generator
        with (
            self.fleet.awake(spec_of(contestant, workload, self.serving)) as server,
            pinned(core),
            tempfile.TemporaryDirectory() as folder,
        ):
            known = JudgedBodies(
                *(bodies, dialect, self.right),
                numbers=itertools.count(bodies.known_from),
                tolerance=LOSSY_TOLERANCE if contestant.server in PRECISIONS else TOLERANCE,
            )
            _check(server, workload, known, np.zeros(BEFORE))
            if workload.repeated:  # so that the cache holds the answers
                each_once = JudgedBodies(bodies.one_after_the_other(), dialect, self.right)
                _check(server, workload, each_once, np.zeros(len(bodies.templates)))
            file = Path(folder) / "requests"
            bodies.write(file)
            plan = LoadPlan(workload.connections, WARM_UP_S)
            with _loading(server, workload, (bodies, file, 0), plan) as load:
                warmed = load()
            ours = contestant.server in OUR_OWN
            batch_s = TEXT_BATCH_S if workload.is_text else BATCH_S
            settled = partial(counters.settled_counters, server, self.manifest.model, batch_s)
            before = settled() if ours else None
            requests = (bodies, file, warmed.sent)
            run, cpu_us, checks = self._loaded(server, workload, known, requests, seed)
            if warmed.sent + run.sent > bodies.known_from:
                raise BodiesError(f"all {bodies.known_from} different requests were used up")
            if before is not None:
                added = settled().since(before)
                least, most = (run.answered + checks), (run.sent + checks)
                cached = workload.repeated > 0
                counters.check(added, least * workload.items, most * workload.items, cached=cached)
        return Measured(run.requests_per_s, run.p50_ms, run.p99_ms, cpu_us, BEFORE + checks)

    def _loaded(
        self,
        server: Server,
        workload: Workload,
        known: JudgedBodies,
        requests: Numbered,
        seed: int,
    ) -> tuple[Run, float, int]:
        """The run, microseconds of processor time per answer, and how many answers were known."""
        plan = LoadPlan(workload.connections, self.seconds)
        due_s = schedule("uniform", workload.checks_per_s, self.seconds, seed)
        before_s = server.cpu_s()
        with _loading(server, workload, requests, plan) as load:
            _check(server, workload, known, due_s)
            run = load()
        _check_run(run, plan)
        cpu_us = (server.cpu_s() - before_s) * 1e6 / max(1, run.answered + len(due_s))
        return run, cpu_us, len(due_s)


def _loading(
    server: Server, workload: Workload, requests: Numbered, plan: LoadPlan
) -> contextlib.AbstractContextManager[Callable[[], Run]]:
    """Load it meanwhile, by the generator of the transport."""
    bodies, file, first = requests
    if workload.body == "grpc":
        from loadtests.bench import grpc_load  # noqa: PLC0415  # its package is an extra

        return grpc_load.loading(server.other_port, bodies, first, plan)
    return wrk.loading(server.port, file, first, plan)


def _check(server: Server, workload: Workload, requests: JudgedBodies, due_s: Array) -> None:
    """Send requests when they are due, and compare the answers.

    Raises:
        CheckError: if one is not right.
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
        raise CheckError(f"a good request was not answered rightly: {reason}")


def _check_run(run: Run, plan: LoadPlan) -> None:
    """Check the counts of a closed loop.

    Raises:
        CheckError: if an answer was not 200, or stayed out.
    """
    if run.not_200:
        raise CheckError(f"{run.not_200} of {run.answered} answers were not 200")
    if run.sent > run.answered + plan.connections + 1:  # at the end each may be owed one
        raise CheckError(
            f"{run.sent} requests were sent over {plan.connections} connections, and "
            f"{run.answered} answered"
        )
    if not run.answered or math.isnan(run.p50_ms):
        raise CheckError(f"no answer in {run.seconds:g} s")
