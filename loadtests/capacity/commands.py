"""`find-capacity` and `run`: from the options to the files and the exit code."""

from __future__ import annotations

import argparse
import resource
import time

from rich.console import Console

from loadtests.capacity import report
from loadtests.capacity.finding import SearchResult, find, measuring
from loadtests.capacity.options import LOWEST_RATE_PER_S
from loadtests.capacity.search import Lengths, Search, TrialStep
from loadtests.errors import UsageError
from loadtests.openloop.address import ServerAddress, reach
from loadtests.openloop.generator import TrialLimits
from loadtests.openloop.sender import Sender
from loadtests.openloop.trial import Gates, TrialResult
from loadtests.reports import Json, check_writable, conditions, warnings, write
from loadtests.traffic.reference_inputs import ask
from loadtests.traffic.target import Target, learn
from loadtests.traffic.workloads import workload
from models.system.command_lines import INTERRUPTED_EXIT_CODE
from models.system.resources import usable_cores

OK, FAILED = 0, 1
RUN_SETTLE_S = 1.0  # load before the measured time of a run
OTHER_FILES = 64  # open in addition to the connections: libraries, event loop, output


def find_capacity(args: argparse.Namespace, console: Console, command: str) -> int:
    check(args)
    gates = Gates(args.slo_ms, args.fail_ratio)
    address, target = reach(args.url), learn(args.url, args.model)
    check_writable(args.out)
    facts = _conditions(args, address, target, command)
    lengths = Lengths.within(args.budget_s)
    search = Search(lengths, args.start_rate, LOWEST_RATE_PER_S, args.max_rate)
    console.print(
        f"{target.model} {target.version} at {args.url}: the highest rate with a p99 of "
        f"at most {gates.slo_ms:g} ms; workload {args.workload}, about {args.budget_s:g} s"
    )
    console.print(f"{facts['machine']}, {facts['date']}: {command}", markup=False)
    for each in warnings(facts["load_average"], usable_cores()):
        console.print(each)
    sender = _sender(args, address, target, console)
    measure = measuring(sender.run, lengths.settle_s, gates.slo_ms, args.seed)
    result = find(
        search,
        measure,
        gates,
        args.budget_s,
        time.monotonic,
        lambda trial: console.print(report.progress(trial, gates)),
    )
    report.print_trials(console, result.trials, gates)
    console.print(report.headline(result, gates), style="bold", markup=False)
    for note in report.notes(result, gates):
        console.print(note, markup=False)
    if result.trials:
        report_fields = report.capacity_json(result, gates, facts)
        write(args.out, "capacity", report_fields, console)
    return exit_code(result, args.min_capacity, console)


def run(args: argparse.Namespace, console: Console, command: str) -> int:
    check(args)
    gates = Gates(args.fail_p99_ms or args.slo_ms, args.fail_ratio)
    address, target = reach(args.url), learn(args.url, args.model)
    check_writable(args.out)
    facts = _conditions(args, address, target, command)
    sender = _sender(args, address, target, console)
    measure = measuring(sender.run, RUN_SETTLE_S, gates.slo_ms, args.seed)
    trial = measure(TrialStep("run", args.rate, args.seconds))
    report.print_trials(console, [trial], gates)
    for reason, count in trial.failures.items():
        console.print(f"{count} failed: {reason}", markup=False)
    for doubt in trial.doubts():
        console.print(f"Not to be trusted: {doubt}.", markup=False)
    report_fields = {"kind": "run", "conditions": facts, "trial": report.trial_json(trial, gates)}
    write(args.out, "run", report_fields, console)
    reasons = missed_gates(trial, args.fail_p99_ms, args.fail_ratio)
    for each in reasons:
        console.print(f"FAILED: {each}", markup=False)
    return FAILED if reasons else OK


def missed_gates(trial: TrialResult, p99_ms: float | None, fail_ratio: float) -> list[str]:
    """Say why a single run fails; wrong answers and a run without any answer always fail."""
    reasons = []
    if trial.wrong:
        reasons.append(f"{trial.wrong} wrong answers, the first: {trial.first_wrong}")
    if trial.requests <= trial.failed:
        reasons.append("no request was answered")
    if p99_ms is not None and trial.p99_ms > p99_ms:
        reasons.append(f"p99 is {trial.p99_ms:.1f} ms, above --fail-p99-ms {p99_ms:g}")
    if trial.fail_ratio > fail_ratio:
        reasons.append(f"{trial.fail_ratio:.3%} failed, above --fail-ratio {fail_ratio:.3%}")
    return reasons


def exit_code(result: SearchResult, min_capacity: float | None, console: Console) -> int:
    """Return 0 if there is a sufficient capacity.

    --min-capacity needs a confirmed capacity; without it, an unconfirmed capacity is an ordinary
    result.
    """
    if result.end == "interrupted":
        return INTERRUPTED_EXIT_CODE
    capacity = result.answer.capacity_per_s
    if capacity is None or result.end in ("wrong answers", "unreachable"):
        return FAILED
    if min_capacity is not None and capacity < min_capacity:
        console.print(f"FAILED: {capacity:,.0f}/s is below --min-capacity {min_capacity:g}")
        return FAILED
    if min_capacity is not None and not result.answer.confirmed:
        console.print(
            f"FAILED: --min-capacity {min_capacity:g} needs a confirmed capacity; "
            f"{capacity:,.0f}/s is not confirmed"
        )
        return FAILED
    return OK


def check(args: argparse.Namespace) -> None:
    """Run the checks that need no server.

    Raises:
        UsageError: if nothing could be in time, or the connections need too many open files.
    """
    for option in ("slo_ms", "fail_p99_ms"):
        limit_ms = getattr(args, option, None)
        if limit_ms is not None and args.timeout_s * 1000 <= limit_ms:
            raise UsageError(
                f"--timeout-s {args.timeout_s:g} must be longer than "
                f"--{option.replace('_', '-')} {limit_ms:g}"
            )
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = args.connections + OTHER_FILES
    if limit != resource.RLIM_INFINITY and limit < files:
        raise UsageError(
            f"{args.connections} connections need {files} open files, but the limit is "
            f"{limit}; raise it (ulimit -n {files}), or lower --connections"
        )


def _sender(
    args: argparse.Namespace, address: ServerAddress, target: Target, console: Console
) -> Sender:
    """Query the idle server for correct answers, and build the sender of the load."""
    references = ask(target)
    console.print(references.describe(), markup=False)
    calls = workload(args.workload, target, args.seed, references)
    return Sender(address, calls, args.arrivals, TrialLimits(args.connections, args.timeout_s))


def _conditions(
    args: argparse.Namespace, address: ServerAddress, target: Target, command: str
) -> Json:
    return {
        **conditions(command),
        "address": address.peer,
        "model": target.model,
        "version": target.version,
        "precision": target.precision,
        "options": {name: str(value) for name, value in vars(args).items()},
    }
