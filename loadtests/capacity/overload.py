"""`python -m loadtests overload`: measures servers at more than their capacity.

For each model every server is started on one core, the capacity search finds its capacity with a
deadline, and then multiples of that rate are offered.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.console import Console

from loadtests.bench.answers import CheckError, JudgedBodies
from loadtests.bench.bodies import bodies_of
from loadtests.bench.dialects import dialect_of
from loadtests.bench.environments import why_not
from loadtests.bench.launch import TITLES, Contestant, Serving, spec_of
from loadtests.bench.machine import Place, prepare
from loadtests.bench.own_models import manifest_of
from loadtests.bench.servers import (
    Cores,
    Fleet,
    ServerSpec,
    pinned,
)
from loadtests.bench.stalls import share_stalled
from loadtests.bench.workloads import MOSEC, OURS
from loadtests.capacity import cases
from loadtests.capacity.cases import Case, CaseName
from loadtests.capacity.finding import find, measuring
from loadtests.capacity.options import LOWEST_RATE_PER_S
from loadtests.capacity.overload_report import as_json, print_report
from loadtests.capacity.search import Lengths, Search, Step
from loadtests.capacity.verdicts import Load, Measured, judge
from loadtests.errors import LoadTestError
from loadtests.openloop.generator import UNANSWERED, Limits
from loadtests.openloop.sender import Cost, Outcomes, Sender, TrialPlan
from loadtests.openloop.trial import Gates, Trial
from loadtests.reports import cut_short, print_judged, write

WIDTH = 175  # a narrower terminal breaks lines, which is better than truncated figures
SECONDS, QUICK_SECONDS = 5.0, 2.0
BUDGET_S, QUICK_BUDGET_S = 20.0, 15.0
HELD = 0.9  # share of offered requests answered in time at which the server sustains a rate
START_PER_S, HIGHEST_PER_S = 100.0, 20_000.0
LEAD_S = 0.5  # of each load, in which connections open and queues fill
# Factors for the time: below capacity, because rejections are rare and one pause of the machine
# makes a tail; above it if answers per second are few, because one pause makes ten of them late.
LONGER_BELOW, LONGER = 8, 3
LIMITS = Limits(connections=4096, patience_s=2.0)
STALL_S = 0.5
MAX_BYTES = 256 * 1024 * 1024  # of one load's requests, which are built beforehand


def overload(given: argparse.Namespace, console: Console, command: str) -> int:
    """Measure, print, write; return the exit code.

    A missed demand is an ordinary result: it is reported, and the exit code is 0.
    """
    console.width = max(console.width, WIDTH)
    place = prepare(given, console, command)
    session = Session(given, place, console.print)
    try:
        session.run()
    finally:  # write the results so far, even if the rest is missing
        if session.results:
            lines = judge(session.results, pinned=place.cores.server is not None)
            print_report(console, session.results)
            print_judged(console, lines)
            found = place.conditions | {
                "left_out": session.left_out,
                "incomplete": cut_short(),
            }
            write(given.out, "overload", as_json(session.results, lines, found), console)
    return 0


@dataclass(slots=True)
class Session:
    """Runs the requested measurements.

    Attributes:
        say: prints progress.
        results: so far.
        left_out: why a server was not measured, by model and server.
    """

    options: argparse.Namespace
    place: Place
    say: Callable[[str], object]
    results: list[Measured] = field(default_factory=list)
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)

    def run(self) -> None:
        """Measure every server with each model, one after the other.

        Raises:
            LoadTestError: if a number would be invalid.
        """
        options = self.options
        for name in options.models:
            with self._case(name) as case:
                known = (OURS, *case.workload.others)
                for server in options.servers or ((OURS,) if options.quick else known):
                    if server not in known:
                        continue
                    reason = why_not(server) or self._measured(case, server)
                    if reason is not None:
                        self.say(f"{case.name}: {TITLES[server]} is left out: {reason}")
                        self.left_out.setdefault(case.name, {})[server] = reason

    def _case(self, name: CaseName) -> contextlib.AbstractContextManager[Case]:
        if name == "linear":
            return cases.linear(self.options.item_ms, self.place.cores)
        made = cases.minilm if name == "minilm" else cases.digits
        return made(self.options.artifacts)

    def _measured(self, case: Case, server: str) -> str | None:
        """Measure one server, or return why that failed; without ours there is no table."""
        cores = self.place.cores
        serving = Serving(case.folder.absolute(), cores, self.place.package)
        spec = spec_of(Contestant(server), case.workload, serving)
        try:
            with Fleet() as fleet:
                fleet.start(spec)
                made = _Measuring(self.options, cores, case, server, self.say, fleet, spec)
                self.results.append(made.measured())
        except LoadTestError as error:
            if server == OURS:
                raise
            return str(error)
        return None


@dataclass(slots=True)
class _Measuring:
    """One server with one model: a search, then loads, all sent from this process."""

    options: argparse.Namespace
    cores: Cores
    case: Case
    server: str
    say: Callable[[str], object]
    fleet: Fleet
    spec: ServerSpec
    cpu_us: float = 0.0
    due_s: list[float] = field(default_factory=list)
    _seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def start_anew(self, spec: ServerSpec) -> None:
        """Restart the server, with this spec from now on."""
        self.fleet.stop(self.spec)
        self.spec = spec
        self.fleet.start(spec)

    def run(self, plan: TrialPlan) -> tuple[Outcomes, Cost]:
        """Run one trial, with new inputs."""
        manifest = manifest_of(self.case.folder)
        dialect = dialect_of(self.server, self.case.workload, manifest)
        requests = JudgedBodies(
            bodies_of(self.case.workload, manifest, dialect, next(self._seeds)),
            dialect,
            self.case.right,
            tolerance=self.case.tolerance,
            deadline_ms=self.options.deadline_ms,
        )
        with self.fleet.awake(self.spec) as server:
            sender = Sender(server.address, requests, "poisson", LIMITS)
            sender.prepare(plan)
            before_s = server.cpu_s()
            with pinned(self.cores.generator):
                outcomes, cost = sender.send()
            self.cpu_us = (server.cpu_s() - before_s) * 1e6 / max(1, len(outcomes.due_s))
        if UNANSWERED in outcomes.reason:
            self.start_anew(self.spec)  # its pending work would slow the next trial
        self.due_s = outcomes.due_s.tolist()
        return outcomes, cost

    def measured(self) -> Measured:
        """Find the capacity and offer multiples of it.

        Raises:
            LoadTestError: if a number would be invalid.
        """
        capacity_per_s, trials = self._capacity()
        if self.server == MOSEC:
            self.start_anew(self._bounded(capacity_per_s))
        measure = measuring(self.run, LEAD_S, self.options.deadline_ms, next(self._seeds) + 1000)
        loads, stalled = [], share_stalled(self.cores, STALL_S)
        for times in sorted(self.options.loads):
            rate_per_s = times * capacity_per_s
            trial = measure(Step("load", rate_per_s, self._seconds(times, rate_per_s)))
            ideal = None
            if self.case.one_by_one:
                deadline_s = self.options.deadline_ms / 1000
                ideal = ideal_refused(self.due_s, LEAD_S, 1 / capacity_per_s, deadline_s)
            before, stalled = stalled, share_stalled(self.cores, STALL_S)
            loads.append(Load(times, trial, self.cpu_us, (before + stalled) / 2, ideal))
            self.say(
                f"{self.case.name}, {TITLES[self.server]}, {times:g}x "
                f"({trial.offered_per_s:,.0f}/s): {trial.goodput_per_s:,.1f}/s in time, "
                f"{loads[-1].refused_share:.2%} refused"
            )
        return Measured(
            *(self.case.name, self.case.title, self.server, capacity_per_s),
            *(tuple(loads), tuple(trials)),
        )

    def _capacity(self) -> tuple[float, tuple[Trial, ...]]:
        """Return the most timely answers near the highest rate that is sustained to nine tenths.

        Short probes count only if there is no other trial, because they are imprecise.
        """
        options = self.options
        budget_s = options.budget_s or (QUICK_BUDGET_S if options.quick else BUDGET_S)
        lengths = Lengths.within(budget_s)
        gates = Gates(options.deadline_ms, 1 - HELD, in_time=HELD)
        search = Search(lengths, START_PER_S, LOWEST_RATE_PER_S, HIGHEST_PER_S)
        measure = measuring(self.run, lengths.settle_s, gates.slo_ms, next(self._seeds))
        found = find(search, measure, gates, budget_s, time.monotonic, lambda _: None)
        if found.end == "interrupted":
            raise KeyboardInterrupt
        wrong = next((each.first_wrong for each in found.trials if each.wrong), "")
        if found.at_capacity(gates) is None or wrong or found.end == "unreachable":
            why = wrong or found.reason or f"no rate is sustained within {options.deadline_ms} ms"
            raise CheckError(f"{self.spec.name} has no capacity: {why}")
        long = [each for each in found.trials if each.kind in ("search", "confirm")]
        holds_per_s = max(each.goodput_per_s for each in long or found.trials)
        self.say(
            f"{self.case.name}, {TITLES[self.server]} sustains {holds_per_s:,.0f}/s "
            f"({len(found.trials)} trials in {found.seconds:.0f} s)"
        )
        return holds_per_s, found.trials

    def _seconds(self, times: float, rate_per_s: float) -> float:
        """Return the measured time of a load."""
        options = self.options
        seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
        longer = LONGER_BELOW if times < 1 else LONGER if self.case.one_by_one else 1
        workload, manifest = self.case.workload, manifest_of(self.case.folder)
        dialect = dialect_of(self.server, workload, manifest)
        bodies = bodies_of(workload, manifest, dialect, 0)
        room_s = MAX_BYTES / (rate_per_s * bodies.request_bytes) - LEAD_S
        return float(min(seconds * longer, room_s))

    def _bounded(self, holds_per_s: float) -> ServerSpec:
        """Return mosec with its best settings for this deadline.

        It drops requests that have waited longer. It contains at most the requests that it can
        answer in half of that time, because each may wait for as many in a running batch.
        """
        deadline_ms = self.options.deadline_ms
        most = max(1, round(holds_per_s * deadline_ms / 1000 / 2))
        own = (("BENCH_TIMEOUT_MS", str(deadline_ms)), ("BENCH_CAPACITY", str(most)))
        return dataclasses.replace(self.spec, environment=(*self.spec.environment, *own))


def ideal_refused(due_s: list[float], lead_s: float, service_s: float, deadline_s: float) -> float:
    """Return the share that must be rejected if every item takes equally long and runs alone.

    An ideal server with full knowledge accepts what it can answer in time, in order of arrival.
    """
    free_s, refused, counted = 0.0, 0, 0
    for due in due_s:
        done_s = max(due, free_s) + service_s
        is_late = done_s - due > deadline_s
        free_s = free_s if is_late else done_s
        counted += due >= lead_s
        refused += is_late and due >= lead_s
    return refused / counted if counted else 0.0
