"""`torchlane load overload`: offers our server more than its capacity.

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
from loadtests.bench.machine import Site, prepare, share_stalled
from loadtests.bench.servers import Fleet, ServerSpec, pinned
from loadtests.bench.workloads import DIGITS
from loadtests.capacity.finding import find, measuring
from loadtests.capacity.linear import linear_artifact
from loadtests.capacity.options import LOWEST_RATE_PER_S
from loadtests.capacity.overload_report import (
    LoadResult,
    OverloadResult,
    format_share,
    print_report,
)
from loadtests.capacity.search import Lengths, Search, TrialStep
from loadtests.errors import LoadTestError
from loadtests.openloop.address import reach
from loadtests.openloop.generator import NO_ANSWER, TrialLimits
from loadtests.openloop.sender import Cost, Outcomes, Sender, TrialPlan, longest_s
from loadtests.openloop.trial import Gates, TrialResult
from loadtests.reports import cut_short, write
from loadtests.traffic.reference_inputs import ask
from loadtests.traffic.target import learn
from loadtests.traffic.workloads import workload

WIDTH = 175  # a narrower terminal breaks lines, which is better than truncated figures
OURS, BEFORE = "Torchlane", "Torchlane before"
SECONDS, QUICK_SECONDS = 5.0, 2.0
BUDGET_S, QUICK_BUDGET_S = 20.0, 15.0
SUSTAINED_SHARE = 0.9  # of the offered requests, answered in time: the server sustains the rate
START_PER_S, HIGHEST_PER_S = 100.0, 20_000.0
LEAST_S = 0.2  # of a load whose requests fill the memory; a shorter one is left out
LEAD_S = 0.5  # of each load, in which connections open and queues fill
# Factors for the time: below capacity, because rejections are rare and one pause of the machine
# makes a tail; above it if answers per second are few, because one pause makes ten of them late.
LONGER_BELOW, LONGER = 8, 3
LIMITS = TrialLimits(connections=4096, patience_s=2.0)
STALL_S = 0.5


class CapacityError(LoadTestError):
    """The server has no capacity; the message says why."""


def overload(args: argparse.Namespace, console: Console, command: str) -> int:
    console.width = max(console.width, WIDTH)
    site = prepare(args, console, command)
    packages = {OURS: site.package}
    if args.before:
        packages = {BEFORE: args.before.absolute(), **packages}
    results: list[OverloadResult] = []
    try:
        for name in args.models:
            with _artifact(name, args, site) as folder:
                for server, package in packages.items():
                    results.append(_measure(args, site, server, folder, package, console.print))
    finally:  # write the results so far, even if the rest is missing
        if results:
            print_report(console, results)
            facts = site.conditions | {"incomplete": cut_short()}
            each = [dataclasses.asdict(result) for result in results]
            report_fields = {"kind": "overload", "conditions": facts, "results": each}
            write(args.out, "overload", report_fields, console)
    return 0


@contextlib.contextmanager
def _artifact(model: str, args: argparse.Namespace, site: Site) -> Iterator[Path]:
    """Provide a model: digits, or one that is built here."""
    if model == DIGITS:
        yield newest_artifact(args.artifacts, DIGITS).absolute()
        return
    with tempfile.TemporaryDirectory() as models:
        with pinned(site.cores.server):
            folder = linear_artifact(Path(models), args.item_ms)
        yield folder


def _measure(
    args: argparse.Namespace,
    site: Site,
    server: str,
    folder: Path,
    package: Path | None,
    say: Callable[[str], object],
) -> OverloadResult:
    spec = own_spec(server, folder, package, site.cores.server)
    with Fleet() as fleet:
        fleet.start(spec)
        return _OverloadRun(args, site, folder.parent.name, say, fleet, spec).measure()


@dataclass(slots=True)
class _OverloadRun:
    """One server with one model: a search, then loads, all sent from this process."""

    options: argparse.Namespace
    site: Site
    model: str
    say: Callable[[str], object]
    fleet: Fleet
    spec: ServerSpec
    cpu_us: float = 0.0
    due_s: list[float] = field(default_factory=list)
    sender: Sender | None = None  # to the running process
    request_bytes: float = 0.0  # mean size in the last trial
    _seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def measure(self) -> OverloadResult:
        """Find the capacity and offer multiples of it.

        Raises:
            LoadTestError: if a number would be invalid.
        """
        cores, deadline_ms = self.site.cores, self.options.deadline_ms
        capacity_per_s, trials = self._capacity()
        measure = measuring(self._run, LEAD_S, deadline_ms, next(self._seeds) + 1000)
        loads, stall = [], share_stalled(cores, STALL_S)
        for times in sorted(self.options.loads):
            rate_per_s = times * capacity_per_s
            fits_s = longest_s(rate_per_s, self.request_bytes) - LEAD_S
            if fits_s < LEAST_S:
                self.say(
                    f"{self.model}, {self.spec.name}, {times:g}x ({rate_per_s:,.0f}/s): left out, "
                    f"because {LEAD_S + LEAST_S:g} s of requests do not fit into memory"
                )
                continue
            seconds = min(self._seconds(times), fits_s)
            trial = measure(TrialStep("load", rate_per_s, seconds))
            ideal = None
            if self.model != DIGITS:  # items cost the same in any batch
                ideal = ideal_refused(self.due_s, LEAD_S, 1 / capacity_per_s, deadline_ms / 1000)
            before, stall = stall, share_stalled(cores, STALL_S)
            loads.append(LoadResult(times, trial, self.cpu_us, (before + stall) / 2, ideal))
            self.say(
                f"{self.model}, {self.spec.name}, {times:g}x ({trial.offered_per_s:,.0f}/s): "
                f"{trial.goodput_per_s:,.1f}/s in time, "
                f"{format_share(trial.refused, trial.requests)} refused"
            )
        return OverloadResult(self.model, self.spec.name, capacity_per_s, tuple(loads), trials)

    def _run(self, plan: TrialPlan) -> tuple[Outcomes, Cost]:
        with self.fleet.awake(self.spec) as server:
            if self.sender is None:
                target = learn(server.url)
                name = "unique" if self.model == DIGITS else "binary"
                calls = workload(name, target, next(self._seeds), ask(target))
                header = {"X-Torchlane-Timeout-Ms": str(self.options.deadline_ms)}
                self.sender = Sender(reach(server.url), calls, "poisson", LIMITS, header)
            self.sender.prepare(plan)
            self.request_bytes = self.sender.request_bytes
            before_s = server.cpu_s()
            with pinned(self.site.cores.generator):
                outcomes, cost = self.sender.send()
            self.cpu_us = (server.cpu_s() - before_s) * 1e6 / max(1, len(outcomes.due_s))
        if NO_ANSWER in outcomes.reason:  # pending work would slow the next trial
            self.fleet.stop(self.spec)
            self.fleet.start(self.spec)
            self.sender = None
        self.due_s = outcomes.due_s.tolist()
        return outcomes, cost

    def _capacity(self) -> tuple[float, tuple[TrialResult, ...]]:
        """Return the most timely answers near the highest rate that is sustained to nine tenths.

        Short probes count only if there is no other trial, because they are imprecise.
        """
        options = self.options
        budget_s = options.budget_s or (QUICK_BUDGET_S if options.quick else BUDGET_S)
        lengths = Lengths.within(budget_s)
        gates = Gates(options.deadline_ms, 1 - SUSTAINED_SHARE, in_time=SUSTAINED_SHARE)
        search = Search(lengths, START_PER_S, LOWEST_RATE_PER_S, HIGHEST_PER_S)
        measure = measuring(self._run, lengths.settle_s, gates.slo_ms, next(self._seeds))
        result = find(search, measure, gates, budget_s, time.monotonic, lambda _: None)
        if result.end == "interrupted":
            raise KeyboardInterrupt
        wrong = next((each.first_wrong for each in result.trials if each.wrong), "")
        if result.at_capacity(gates) is None or wrong or result.end == "unreachable":
            why = wrong or result.reason or f"no rate is sustained within {options.deadline_ms} ms"
            raise CapacityError(f"{self.spec.name} has no capacity: {why}")
        long = [each for each in result.trials if each.kind in ("search", "confirm")]
        holds_per_s = max(each.goodput_per_s for each in long or result.trials)
        self.say(
            f"{self.model}, {self.spec.name} sustains {holds_per_s:,.0f}/s "
            f"({len(result.trials)} trials in {result.seconds:.0f} s)"
        )
        return holds_per_s, result.trials

    def _seconds(self, times: float) -> float:
        """Return the intended measured time of a load."""
        seconds = self.options.seconds or (QUICK_SECONDS if self.options.quick else SECONDS)
        longer = LONGER_BELOW if times < 1 else LONGER if self.model != DIGITS else 1
        return float(seconds * longer)


def ideal_refused(due_s: list[float], lead_s: float, service_s: float, deadline_s: float) -> float:
    """Return the share that must be rejected if every item takes equally long and runs alone.

    An ideal server with full knowledge accepts what it can answer in time, in order of arrival.
    """
    free_s, rejections, arrivals = 0.0, 0, 0
    for due in due_s:
        done_s = max(due, free_s) + service_s
        is_late = done_s - due > deadline_s
        free_s = free_s if is_late else done_s
        arrivals += due >= lead_s
        rejections += is_late and due >= lead_s
    return rejections / arrivals if arrivals else 0.0
