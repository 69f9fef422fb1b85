"""`python -m loadtests overload`: offers our server more than its capacity.

For each model the server is started on one core, the capacity search finds its capacity with a
deadline, and then multiples of that rate are offered.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from loadtests.bench.artifacts import newest_artifact
from loadtests.bench.launch import own_spec
from loadtests.bench.machine import Place, prepare, share_stalled
from loadtests.bench.servers import Fleet, ServerSpec, pinned
from loadtests.bench.workloads import DIGITS
from loadtests.capacity.finding import find, measuring
from loadtests.capacity.linear import linear_artifact
from loadtests.capacity.options import LOWEST_RATE_PER_S
from loadtests.capacity.overload_report import Load, Measured, print_report, share_told
from loadtests.capacity.search import Lengths, Search, Step
from loadtests.errors import LoadTestError
from loadtests.openloop.address import reach
from loadtests.openloop.generator import UNANSWERED, Limits
from loadtests.openloop.sender import Cost, Outcomes, Sender, TrialPlan
from loadtests.openloop.trial import Gates, Trial
from loadtests.reports import cut_short, write
from loadtests.traffic.reference_inputs import ask
from loadtests.traffic.target import learn
from loadtests.traffic.workloads import workload

WIDTH = 175  # a narrower terminal breaks lines, which is better than truncated figures
OURS, BEFORE = "Torchlane", "Torchlane before"
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


class CapacityError(LoadTestError):
    """The server has no capacity; the message says why."""


def overload(given: argparse.Namespace, console: Console, command: str) -> int:
    console.width = max(console.width, WIDTH)
    place = prepare(given, console, command)
    packages = {OURS: place.package}
    if given.before:
        packages = {BEFORE: given.before.absolute(), **packages}
    results: list[Measured] = []
    try:
        for name in given.models:
            with _artifact(name, given, place) as folder:
                for server, package in packages.items():
                    results.append(_measured(given, place, server, folder, package, console.print))
    finally:  # write the results so far, even if the rest is missing
        if results:
            print_report(console, results)
            found = place.conditions | {"incomplete": cut_short()}
            each = [dataclasses.asdict(result) for result in results]
            made = {"kind": "overload", "conditions": found, "results": each}
            write(given.out, "overload", made, console)
    return 0


@contextlib.contextmanager
def _artifact(model: str, given: argparse.Namespace, place: Place) -> Iterator[Path]:
    """Provide a model: digits, or one that is built here."""
    if model == DIGITS:
        yield newest_artifact(given.artifacts, DIGITS).absolute()
        return
    with tempfile.TemporaryDirectory() as models:
        with pinned(place.cores.server):
            folder = linear_artifact(Path(models), given.item_ms)
        yield folder


def _measured(
    given: argparse.Namespace,
    place: Place,
    server: str,
    folder: Path,
    package: Path | None,
    say: Callable[[str], object],
) -> Measured:
    spec = own_spec(server, folder, package, place.cores.server)
    with Fleet() as fleet:
        fleet.start(spec)
        return _Measuring(given, place, folder.parent.name, say, fleet, spec).measured()


@dataclass(slots=True)
class _Measuring:
    """One server with one model: a search, then loads, all sent from this process."""

    options: argparse.Namespace
    place: Place
    model: str
    say: Callable[[str], object]
    fleet: Fleet
    spec: ServerSpec
    cpu_us: float = 0.0
    due_s: list[float] = field(default_factory=list)
    sender: Sender | None = None  # to the running process
    _seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def measured(self) -> Measured:
        """Find the capacity and offer multiples of it.

        Raises:
            LoadTestError: if a number would be invalid.
        """
        cores, deadline_ms = self.place.cores, self.options.deadline_ms
        capacity_per_s, trials = self._capacity()
        measure = measuring(self._run, LEAD_S, deadline_ms, next(self._seeds) + 1000)
        loads, stalled = [], share_stalled(cores, STALL_S)
        for times in sorted(self.options.loads):
            trial = measure(Step("load", times * capacity_per_s, self._seconds(times)))
            ideal = None
            if self.model != DIGITS:  # items cost the same in any batch
                ideal = ideal_refused(self.due_s, LEAD_S, 1 / capacity_per_s, deadline_ms / 1000)
            before, stalled = stalled, share_stalled(cores, STALL_S)
            loads.append(Load(times, trial, self.cpu_us, (before + stalled) / 2, ideal))
            self.say(
                f"{self.model}, {self.spec.name}, {times:g}x ({trial.offered_per_s:,.0f}/s): "
                f"{trial.goodput_per_s:,.1f}/s in time, "
                f"{share_told(trial.refused, trial.requests)} refused"
            )
        return Measured(self.model, self.spec.name, capacity_per_s, tuple(loads), trials)

    def _run(self, plan: TrialPlan) -> tuple[Outcomes, Cost]:
        with self.fleet.awake(self.spec) as server:
            if self.sender is None:
                target = learn(server.url)
                name = "unique" if self.model == DIGITS else "binary"
                calls = workload(name, target, next(self._seeds), ask(target))
                header = {"X-Torchlane-Timeout-Ms": str(self.options.deadline_ms)}
                self.sender = Sender(reach(server.url), calls, "poisson", LIMITS, header)
            self.sender.prepare(plan)
            before_s = server.cpu_s()
            with pinned(self.place.cores.generator):
                outcomes, cost = self.sender.send()
            self.cpu_us = (server.cpu_s() - before_s) * 1e6 / max(1, len(outcomes.due_s))
        if UNANSWERED in outcomes.reason:  # pending work would slow the next trial
            self.fleet.stop(self.spec)
            self.fleet.start(self.spec)
            self.sender = None
        self.due_s = outcomes.due_s.tolist()
        return outcomes, cost

    def _capacity(self) -> tuple[float, tuple[Trial, ...]]:
        """Return the most timely answers near the highest rate that is sustained to nine tenths.

        Short probes count only if there is no other trial, because they are imprecise.
        """
        options = self.options
        budget_s = options.budget_s or (QUICK_BUDGET_S if options.quick else BUDGET_S)
        lengths = Lengths.within(budget_s)
        gates = Gates(options.deadline_ms, 1 - HELD, in_time=HELD)
        search = Search(lengths, START_PER_S, LOWEST_RATE_PER_S, HIGHEST_PER_S)
        measure = measuring(self._run, lengths.settle_s, gates.slo_ms, next(self._seeds))
        found = find(search, measure, gates, budget_s, time.monotonic, lambda _: None)
        if found.end == "interrupted":
            raise KeyboardInterrupt
        wrong = next((each.first_wrong for each in found.trials if each.wrong), "")
        if found.at_capacity(gates) is None or wrong or found.end == "unreachable":
            why = wrong or found.reason or f"no rate is sustained within {options.deadline_ms} ms"
            raise CapacityError(f"{self.spec.name} has no capacity: {why}")
        long = [each for each in found.trials if each.kind in ("search", "confirm")]
        holds_per_s = max(each.goodput_per_s for each in long or found.trials)
        self.say(
            f"{self.model}, {self.spec.name} sustains {holds_per_s:,.0f}/s "
            f"({len(found.trials)} trials in {found.seconds:.0f} s)"
        )
        return holds_per_s, found.trials

    def _seconds(self, times: float) -> float:
        """Return the measured time of a load."""
        seconds = self.options.seconds or (QUICK_SECONDS if self.options.quick else SECONDS)
        longer = LONGER_BELOW if times < 1 else LONGER if self.model != DIGITS else 1
        return float(seconds * longer)


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
