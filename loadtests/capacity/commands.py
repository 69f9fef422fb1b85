"""`find-capacity` and `run`: from the options to the files and the exit code."""

from __future__ import annotations

import argparse
import resource
import time

from rich.console import Console

from loadtests.capacity import report
from loadtests.capacity.finding import Found, find, measuring
from loadtests.capacity.options import LOWEST_RATE_PER_S
from loadtests.capacity.search import Lengths, Search, Step
from loadtests.errors import UsageError
from loadtests.openloop.address import Address, reach
from loadtests.openloop.generator import Limits
from loadtests.openloop.sender import Sender
from loadtests.openloop.trial import Gates, Trial
from loadtests.reports import Json, check_writable, conditions, warnings, write
from loadtests.traffic.reference_inputs import ask
from loadtests.traffic.target import Target, learn
from loadtests.traffic.workloads import workload
from models.resources import usable_cores

OK, FAILED, INTERRUPTED = 0, 1, 130
RUN_SETTLE_S = 1.0  # load before the measured time of a run
OTHER_FILES = 64  # open in addition to the connections: libraries, event loop, output


def find_capacity(given: argparse.Namespace, console: Console, command: str) -> int:
    check(given)
    gates = Gates(given.slo_ms, given.fail_ratio)
    address, target = reach(given.url), learn(given.url, given.model)
    check_writable(given.out)
    found_here = _conditions(given, address, target, command)
    lengths = Lengths.within(given.budget_s)
    search = Search(lengths, given.start_rate, LOWEST_RATE_PER_S, given.max_rate)
    console.print(
        f"{target.model} {target.version} at {given.url}: the highest rate with a p99 of "
        f"at most {gates.slo_ms:g} ms; workload {given.workload}, about {given.budget_s:g} s"
    )
    console.print(f"{found_here['machine']}, {found_here['date']}: {command}", markup=False)
    for each in warnings(found_here["load_average"], usable_cores()):
        console.print(each)
    sender = _sender(given, address, target, console)
    measure = measuring(sender.run, lengths.settle_s, gates.slo_ms, given.seed)
    found = find(
        search,
        measure,
        gates,
        given.budget_s,
        time.monotonic,
        lambda trial: console.print(report.progress(trial, gates)),
    )
    report.print_trials(console, found.trials, gates)
    console.print(report.headline(found, gates), style="bold", markup=False)
    for note in report.notes(found, gates):
        console.print(note, markup=False)
    if found.trials:
        made = report.capacity_json(found, gates, found_here)
        write(given.out, "capacity", made, console)
    return exit_code(found, given.min_capacity, console)


def run(given: argparse.Namespace, console: Console, command: str) -> int:
    check(given)
    gates = Gates(given.fail_p99_ms or given.slo_ms, given.fail_ratio)
    address, target = reach(given.url), learn(given.url, given.model)
    check_writable(given.out)
    found_here = _conditions(given, address, target, command)
    sender = _sender(given, address, target, console)
    measure = measuring(sender.run, RUN_SETTLE_S, gates.slo_ms, given.seed)
    trial = measure(Step("run", given.rate, given.seconds))
    report.print_trials(console, [trial], gates)
    for reason, count in trial.failures.items():
        console.print(f"{count} failed: {reason}", markup=False)
    for doubt in trial.doubts():
        console.print(f"Not to be trusted: {doubt}.", markup=False)
    made = {"kind": "run", "conditions": found_here, "trial": report.trial_json(trial, gates)}
    write(given.out, "run", made, console)
    missed = missed_gates(trial, given.fail_p99_ms, given.fail_ratio)
    for each in missed:
        console.print(f"FAILED: {each}", markup=False)
    return FAILED if missed else OK


def missed_gates(trial: Trial, p99_ms: float | None, fail_ratio: float) -> list[str]:
    """Say why a single run fails; wrong answers and a run without any answer always fail."""
    missed = []
    if trial.wrong:
        missed.append(f"{trial.wrong} wrong answers, the first: {trial.first_wrong}")
    if trial.requests <= trial.failed:
        missed.append("no request was answered")
    if p99_ms is not None and trial.p99_ms > p99_ms:
        missed.append(f"p99 is {trial.p99_ms:.1f} ms, above --fail-p99-ms {p99_ms:g}")
    if trial.fail_ratio > fail_ratio:
        missed.append(f"{trial.fail_ratio:.3%} failed, above --fail-ratio {fail_ratio:.3%}")
    return missed


def exit_code(found: Found, min_capacity: float | None, console: Console) -> int:
    """Return 0 if there is a sufficient capacity.

    --min-capacity needs a confirmed capacity; without it, an unconfirmed capacity is an ordinary
    result.
    """
    if found.end == "interrupted":
        return INTERRUPTED
    capacity = found.answer.capacity_per_s
    if capacity is None or found.end in ("wrong answers", "unreachable"):
        return FAILED
    if min_capacity is not None and capacity < min_capacity:
        console.print(f"FAILED: {capacity:,.0f}/s is below --min-capacity {min_capacity:g}")
        return FAILED
    if min_capacity is not None and not found.answer.confirmed:
        console.print(
            f"FAILED: --min-capacity {min_capacity:g} needs a confirmed capacity; "
            f"{capacity:,.0f}/s is not confirmed"
        )
        return FAILED
    return OK


def check(given: argparse.Namespace) -> None:
    """Run the checks that need no server.

    Raises:
        UsageError: if nothing could be in time, or the connections need too many open files.
    """
    for option in ("slo_ms", "fail_p99_ms"):
        allowed_ms = getattr(given, option, None)
        if allowed_ms is not None and given.timeout_s * 1000 <= allowed_ms:
            raise UsageError(
                f"--timeout-s {given.timeout_s:g} must be longer than "
                f"--{option.replace('_', '-')} {allowed_ms:g}"
            )
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = given.connections + OTHER_FILES
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        raise UsageError(
            f"{given.connections} connections need {needed} open files, but the limit is "
            f"{allowed}; raise it (ulimit -n {needed}), or lower --connections"
        )


def _sender(
    given: argparse.Namespace, address: Address, target: Target, console: Console
) -> Sender:
    """Query the idle server for correct answers, and build the sender of the load."""
    references = ask(target)
    console.print(references.told(), markup=False)
    calls = workload(given.workload, target, given.seed, references)
    return Sender(address, calls, given.arrivals, Limits(given.connections, given.timeout_s))


def _conditions(given: argparse.Namespace, address: Address, target: Target, command: str) -> Json:
    return {
        **conditions(command),
        "address": address.peer,
        "model": target.model,
        "version": target.version,
        "precision": target.precision,
        "options": {name: str(value) for name, value in vars(given).items()},
    }
