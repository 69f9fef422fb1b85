"""One server under one model: what it holds, then loads that are multiples of that."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import uvloop

from loadtests.bench import generator
from loadtests.bench.answers import CheckError, problem
from loadtests.bench.bodies import Bodies, bodies_of
from loadtests.bench.dialects import DIALECTS
from loadtests.bench.generator import LoadPlan
from loadtests.bench.servers import Cores, Fleet, Server, ServerSpec, pinned
from loadtests.bench.stalls import share_stalled
from loadtests.openloop.address import Address, Unreachable
from loadtests.openloop.arrivals import schedule
from loadtests.openloop.generator import UNANSWERED, Fired, Limits, TrialTooLarge, fire
from loadtests.overload.cases import Case
from loadtests.overload.ladder import NotHeld, capacity
from loadtests.overload.loads import OK, Load, Offer, ideal_refused, load_of
from loadtests.overload.quota import Quota, quota
from loadtests.wire import HEAD_END
from models.tensors import Array

KNOWN = 8  # requests whose answers are compared before any load
WARM_UP_S, CAPACITY_S = 1.0, 3.0  # the latter at most
MOST_FAILED = 0.01  # of a closed loop's answers: above it there is no capacity to speak of
LEAD_S = 0.5
STEP_S = 2.0  # at most, of each rate that is tried to find the capacity
# Times as long where a second brings few answers: below capacity, because refusals are rare there;
# else because one answer in a hundred may be late, and one pause of the machine makes ten late.
LONGER_BELOW, LONGER = 8, 3
PATIENCE_S = 2.0  # who has no answer so long after the last request was due is late
CONNECTIONS = 4096
STALL_S = 0.5
MAX_BYTES = 256 * 1024 * 1024  # of one load's requests: they are made beforehand


@dataclass(frozen=True, slots=True)
class Plan:
    """What every server has to go through.

    Attributes:
        loads: times its capacity.
        seconds: counted, of each load.
        deadline_ms: that the requests say.
    """

    loads: tuple[float, ...]
    seconds: float
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One server under one model.

    Attributes:
        closed_per_s: answers in a closed loop, without a deadline.
        capacity_per_s: that, or what an open loop holds: see `loadtests.overload.ladder`.
        share: of a core that it had; None: a whole one.
        loads: in the order of the plan.
        tried: to find the capacity, if it was; `times` are of the closed loop's rate there.
    """

    case: str
    server: str
    closed_per_s: float
    capacity_per_s: float
    share: float | None
    loads: tuple[Load, ...]
    tried: tuple[Load, ...] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """Which server is measured by what.

    Attributes:
        server: its name in the bench.
        spec: how it is started.
        share: of a core that it may use, where the kernel lets us say so; None: all of one.
        bounded: how it is started for the loads, by what it holds; None: in the same way.
    """

    server: str
    case: Case
    spec: ServerSpec
    share: float | None
    bounded: Callable[[float], ServerSpec] | None = None


@dataclass(slots=True)
class Measuring:
    """Measures servers one after the other.

    Args:
        cores: of server and generator.
        plan: what they go through.
        tell: gets each load as soon as it is there.
    """

    cores: Cores
    plan: Plan
    tell: Callable[[Load], object]
    _seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def measure(self, subject: Subject) -> Measured:
        """Start the server, find its capacity, offer it multiples of that, end it.

        Raises:
            CheckError, LoadError, ServerError: if a number would not mean what it says.
        """
        limited = quota(subject.share) if subject.share else contextlib.nullcontext()
        with limited as group, Fleet() as fleet:
            running = _Running(fleet, subject.spec, group)
            running.start()
            closed_per_s = self._closed(subject, running)
            if subject.bounded is not None:
                running.start_anew(subject.bounded(closed_per_s))
            capacity_per_s, tried = self._capacity(subject, running, closed_per_s)
            loads = []
            stalled = share_stalled(self.cores, STALL_S)
            for times in self.plan.loads:
                load = self._load(subject, running, times, capacity_per_s, self.plan)
                before, stalled = stalled, share_stalled(self.cores, STALL_S)
                loads.append(dataclasses.replace(load, stalled=(before + stalled) / 2))
                self.tell(loads[-1])
            share = None if group is None else subject.share
            return Measured(
                *(subject.case.name, subject.server, closed_per_s, capacity_per_s, share),
                tuple(loads),
                tuple(tried),
            )

    def _capacity(
        self, subject: Subject, running: _Running, closed_per_s: float
    ) -> tuple[float, Sequence[Load]]:
        """What it holds in an open loop, and the loads that say so.

        Where items cost the same in any batch and little beside, the closed loop has said it.
        """
        if subject.case.one_by_one:
            return closed_per_s, ()
        plan = dataclasses.replace(self.plan, seconds=min(STEP_S, self.plan.seconds))
        try:
            return capacity(
                closed_per_s, lambda share: self._load(subject, running, share, closed_per_s, plan)
            )
        except NotHeld as error:
            raise CheckError(
                f"{subject.spec.name} within {plan.deadline_ms} ms: {error}"
            ) from error

    def _closed(self, subject: Subject, running: _Running) -> float:
        """Answers per second of a closed loop, whose requests say no deadline."""
        bodies = self._bodies(subject)
        with running.awake() as server, pinned(self.cores.generator):
            known = range(bodies.known_from, bodies.known_from + KNOWN)
            fired = _fire(server, np.zeros(KNOWN), [bodies.request(number) for number in known])
            wrong = _wrong(subject, bodies, fired, known.start)
            if wrong or any(each is None or each.status != OK for each in fired.responses):
                raise CheckError(
                    f"{server.name} did not answer good requests rightly: "
                    f"{next(iter(wrong.values()), 'no answer')}; its log ends with:\n"
                    f"{server.log_tail()}"
                )
            sent = 0
            for seconds in (WARM_UP_S, min(CAPACITY_S, self.plan.seconds)):
                closed = LoadPlan(subject.case.workload.connections, seconds)
                run = uvloop.run(generator.load(server.port, bodies.pieces, sent, closed))
                sent += run.sent
        if run.not_200 > MOST_FAILED * run.answered:
            raise CheckError(
                f"{subject.spec.name}: {run.not_200} of {run.answered} answers of a closed loop "
                f"were not 200; the first: {run.first_not_200}"
            )
        return run.requests_per_s

    def _load(
        self, subject: Subject, running: _Running, times: float, capacity_per_s: float, plan: Plan
    ) -> Load:
        case, rate_per_s, seed = subject.case, times * capacity_per_s, next(self._seeds)
        bodies = self._bodies(subject)
        room_s = MAX_BYTES / (rate_per_s * bodies.request_bytes) - LEAD_S
        longer = LONGER_BELOW if times < 1 else LONGER
        seconds = plan.seconds * (longer if case.one_by_one else 1)
        deadline_s = plan.deadline_ms / 1000
        offer = Offer(times, rate_per_s, LEAD_S, min(seconds, room_s), deadline_s)
        due_s = schedule("poisson", rate_per_s, LEAD_S + offer.seconds, seed)
        requests = [
            with_deadline(bodies.request(number), plan.deadline_ms) for number in range(len(due_s))
        ]
        with running.awake() as server, pinned(self.cores.generator):
            before_s = server.cpu_s()
            fired = _fire(server, due_s, requests)
            cpu_us = (server.cpu_s() - before_s) * 1e6 / max(1, len(due_s))
        if UNANSWERED in fired.faults.values():
            running.start_anew()  # what it still owes would fall to the next load
        load = load_of(offer, fired, _wrong(subject, bodies, fired, 0))
        load = dataclasses.replace(load, cpu_us=cpu_us)
        if not case.one_by_one:
            return load
        ideal = ideal_refused(due_s, LEAD_S, 1 / capacity_per_s, deadline_s)
        return dataclasses.replace(load, ideal_refused=ideal)

    def _bodies(self, subject: Subject) -> Bodies:
        """Requests whose inputs nobody has seen."""
        case, dialect = subject.case, DIALECTS[subject.server]
        return bodies_of(case.workload, case.manifest, dialect, next(self._seeds))


@dataclass(slots=True)
class _Running:
    """A server that can be started anew, within its quota if it has one."""

    fleet: Fleet
    spec: ServerSpec
    group: Quota | None

    def start(self) -> None:
        self.fleet.start(self.spec)
        if self.group is not None:
            with self.awake() as server:
                self.group.take(server.process_ids())

    def start_anew(self, spec: ServerSpec | None = None) -> None:
        """`spec`: from now on in this way."""
        self.fleet.stop(self.spec)
        self.spec = spec or self.spec
        self.start()

    def awake(self) -> contextlib.AbstractContextManager[Server]:
        return self.fleet.awake(self.spec)


def with_deadline(request: bytes, deadline_ms: int) -> bytes:
    """An HTTP/1.1 request that says how long its answer is of use; others than ours ignore it."""
    header = b"\r\nX-Torchlane-Timeout-Ms: %d" % deadline_ms
    return request.replace(HEAD_END, header + HEAD_END, 1)


def _fire(server: Server, due_s: Array, requests: list[bytes]) -> Fired:
    address = Address("127.0.0.1", server.port, "127.0.0.1")
    limits = Limits(CONNECTIONS, PATIENCE_S)
    try:
        return uvloop.run(fire(address, due_s, requests, limits))
    except (Unreachable, TrialTooLarge) as error:
        raise CheckError(f"{server.name} could not be asked: {error}") from error


def _wrong(subject: Subject, bodies: Bodies, fired: Fired, first: int) -> dict[int, str]:
    """What is wrong with answers 200 that are not right, by index.

    Args:
        subject: who answered.
        bodies: what was asked.
        fired: the answers.
        first: number of the first request.
    """
    answered = [n for n, each in enumerate(fired.responses) if each and each.status == OK]
    if not answered:
        return {}
    right = subject.case.right(bodies, [first + index for index in answered])
    dialect, wrong = DIALECTS[subject.server], {}
    for index, scores in zip(answered, right, strict=True):
        response = fired.responses[index]
        if response is not None:
            found = problem(dialect, OK, response.body, scores[None], subject.case.tolerance)
            if found is not None:
                wrong[index] = found
    return wrong
