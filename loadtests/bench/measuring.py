"""One turn: wake one server, load it, and check all counts. Answers are compared before."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loadtests.bench import counters, wrk
from loadtests.bench.bodies import Bodies, BodiesError, bodies_of
from loadtests.bench.counters import CheckError
from loadtests.bench.dialects import AnswerError, dialect_of
from loadtests.bench.launch import ServedArtifact, spec_of
from loadtests.bench.servers import Fleet, RunningServer
from loadtests.bench.workloads import OURS, Workload
from loadtests.bench.wrk import LoadPlan, WrkResult
from loadtests.traffic.target import exchange
from models.manifest import Manifest
from models.tensors import Array

WARM_UP_S = 1
COMPARED = 8  # answers of each server
TOLERANCE = 1e-4  # of a score: others run the model's plain script
LEAST_SPREAD = 1e-3  # between the answers to different inputs: equal ones would prove nothing


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """One turn of one server; `cpu_us` is that of all its processes, per request."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float

    @property
    def busy(self) -> float:
        """Busy cores; well below one on one core, the server was not the limit."""
        return self.cpu_us * self.requests_per_s / 1e6


@dataclass(slots=True)
class Requests:
    """The requests to one process in one workload, over all its turns; each is sent once."""

    bodies: Bodies
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
    serving: ServedArtifact
    manifest: Manifest
    seconds: int
    scratch: Path
    _requests: dict[tuple[str, str], Requests] = field(default_factory=dict)

    def check_compiled(self, server: str, workload: Workload) -> None:
        """Check that our running server reports machine code.

        Raises:
            CheckError: if it does not.
        """
        with self.fleet.awake(spec_of(server, workload, self.serving)) as running:
            counters.check_compiled(counters.page_of(running))

    def answers(self, server: str, workload: Workload) -> Array | None:
        """Return the scores [n, items, k] for some inputs, which are the same for all servers.

        Raises:
            CheckError: if an answer is an error or has another format.
        """
        dialect = dialect_of(server, workload, self.manifest)
        bodies, scores = bodies_of(workload, self.manifest, dialect, seed=0), []
        with self.fleet.awake(spec_of(server, workload, self.serving)) as running:
            for number in range(COMPARED):
                path, headers, body = bodies.call(number)
                reply = exchange(running.url, "POST", path, headers, body)
                try:
                    if reply.status != 200:
                        raise AnswerError(f"{reply.status}: {reply.body[:200]!r}")
                    scores.append(dialect.scores(reply.body, many=workload.items > 1))
                except AnswerError as error:
                    raise CheckError(f"a valid request got a wrong answer: {error}") from error
        return None if scores[0] is None else np.array(scores, np.float64)

    def measure(self, server: str, workload: Workload, seed: int) -> TurnFigures:
        """Load in a closed loop: each connection sends its next request after its last answer.

        Args:
            server: its name; its first turn includes a warm-up.
            workload: the requests.
            seed: of the inputs of a new process.

        Raises:
            LoadTestError: if the number would be invalid.
        """
        with self.fleet.awake(spec_of(server, workload, self.serving)) as running:
            requests = self._requests_of(running, server, workload, seed)
            model, before = self.manifest.model, 0.0
            if server == OURS:
                before = counters.items_computed(counters.page_of(running), model)
            plan = LoadPlan(workload.connections, self.seconds)
            figures, run = load_server(running, requests.file, requests.sent, plan)
            requests.sent += run.sent
            if requests.sent > requests.bodies.most:
                raise BodiesError(f"all {requests.bodies.most} different requests were used up")
            if server == OURS:
                computed = counters.items_computed(counters.page_of(running), model) - before
                items, cached = run.answered * workload.items, workload.repeated > 0
                counters.check(computed, items, cached=cached)
        return figures

    def _requests_of(
        self, running: RunningServer, server: str, workload: Workload, seed: int
    ) -> Requests:
        """Return the requests to a process, which is warmed up the first time."""
        if (known_requests := self._requests.get((server, workload.name))) is not None:
            return known_requests
        for key in [key for key in self._requests if key[1] != workload.name]:
            del self._requests[key]
        dialect = dialect_of(server, workload, self.manifest)
        bodies = bodies_of(workload, self.manifest, dialect, seed)
        requests = Requests(bodies, self.scratch / server)
        bodies.write(requests.file)
        self._requests[server, workload.name] = requests
        plan = LoadPlan(workload.connections, WARM_UP_S)
        requests.sent += wrk.load(running.port, requests.file, 0, plan).sent
        return requests


def load_server(
    running: RunningServer, file: Path, first: int, plan: LoadPlan
) -> tuple[TurnFigures, WrkResult]:
    """Load a server with the requests of a file.

    Raises:
        LoadTestError: if the number would be invalid.
    """
    before_s = running.cpu_s()
    run = wrk.load(running.port, file, first, plan)
    cpu_us = (running.cpu_s() - before_s) * 1e6 / max(1, run.answered)
    _check_run(run, plan.connections)
    return TurnFigures(run.requests_per_s, run.p50_ms, run.p99_ms, cpu_us), run


def check_same(ours: Array, theirs: Array | None) -> None:
    """Check that a server computes what ours does.

    Args:
        ours: scores [n, items, k].
        theirs: the same for the same inputs; None: that server computes nothing.

    Raises:
        CheckError: if they differ, or ours are the same for all inputs.
    """
    if float(np.ptp(ours.reshape(-1, ours.shape[-1]), axis=0).max()) < LEAST_SPREAD:
        raise CheckError("different inputs have the same answer: a comparison proves nothing")
    if theirs is None:
        return
    if ours.shape != theirs.shape:
        raise CheckError(f"scores {list(theirs.shape)} instead of {list(ours.shape)}")
    gap = float(np.abs(ours - theirs).max())
    if not gap <= TOLERANCE:  # also true for NaN
        raise CheckError(f"a score differs by {gap:.2g} from ours")


def _check_run(run: WrkResult, connections: int) -> None:
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
