"""Reports the result of a search or a run: sentences, a table and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.console import Console

from loadtests.capacity.finding import SearchResult
from loadtests.openloop.trial import Gates, TrialResult
from loadtests.reports import Json, table_of

COLUMNS = (
    *("trial", "offered/s", "answered/s", "p50 ms", "p95 ms", "p99 ms", "typical\np99 ms"),
    *("failed", "lag\np99 ms", "own\nCPU", "SLO"),
)


def headline(result: SearchResult, gates: Gates) -> str:
    """Return the result of a search in one sentence."""
    capacity, trial = result.answer.capacity_per_s, result.at_capacity(gates)
    slo = f"typical p99 of at most {gates.slo_ms:g} ms, at most {gates.fail_ratio:.2%} failed"
    if result.end == "wrong answers":
        bad = result.trials[-1]
        return f"{bad.wrong} wrong answers at {bad.rate_per_s:,.0f} requests/s: {bad.first_wrong}"
    if capacity is None or trial is None:
        if result.end == "interrupted":
            return "Interrupted before there was any result"
        if result.reason:
            return f"Cut short before there was any result: {result.reason}"
        lowest = min((t.rate_per_s for t in result.trials), default=0.0)
        return f"The server does not meet the SLO ({slo}) even at {lowest:,.3g} requests/s"
    number = _rate(capacity)
    sure = "" if result.answer.confirmed else ", not confirmed"
    if result.at_least:
        return f"Capacity: at least {number} requests/s{sure} ({slo}): {_bound(result, gates)}"
    return f"Capacity: {number} requests/s{sure} ({slo})"


def _bound(result: SearchResult, gates: Gates) -> str:
    """Say what limited the search if it was not the server."""
    if any(each.generator_bound(gates) for each in result.trials):
        return "the generator is the limit"
    if result.end == "too large":
        return "a trial at a higher rate does not fit into memory"
    return "no higher rate was tried"


def notes(result: SearchResult, gates: Gates) -> list[str]:
    """Return what else a reader of the number must know."""
    answer, trial = result.answer, result.at_capacity(gates)
    sentences = []
    if result.end == "interrupted":
        sentences.append("Interrupted: this is the result so far.")
    if result.reason:
        sentences.append(f"Cut short: {result.reason}.")
    is_known = answer.capacity_per_s is not None and trial is not None
    if is_known and not result.at_least:
        sentences.append(
            f"With a probability of 80 % the limit is between {answer.low_per_s:,.4g} and "
            f"{answer.high_per_s:,.4g} requests/s."
        )
    if is_known and not answer.confirmed:
        sentences.append(
            "Not confirmed: no long trial at that rate met the SLO; repeat it on a quieter "
            "machine, or with a larger --budget-s."
        )
    if trial is not None:
        sentences.append(
            f"At {trial.rate_per_s:,.4g}/s: p50 {trial.p50_ms:.1f}, p95 {trial.p95_ms:.1f}, "
            f"p99 {trial.p99_ms:.1f} ms (typical {trial.typical_p99_ms:.1f}); goodput "
            f"{trial.goodput_per_s:,.4g}/s; {trial.failed} of {trial.requests} failed; "
            f"generator at {trial.cost.cpu:.0%} of a core."
        )
        sentences += [f"Not to be trusted: {doubt}." for doubt in trial.doubts()]
    sentences.append(f"{len(result.trials)} trials in {result.seconds:.0f} s.")
    return sentences


def print_trials(console: Console, trials: Sequence[TrialResult], gates: Gates) -> None:
    table = table_of(COLUMNS)
    for trial in trials:
        latencies = (trial.p50_ms, trial.p95_ms, trial.p99_ms, trial.typical_p99_ms)
        table.add_row(
            *(trial.kind, _rate(trial.rate_per_s), _rate(trial.achieved_per_s)),
            *(f"{each:,.1f}" for each in latencies),
            f"{trial.fail_ratio:.2%}" if trial.failed else "0",
            *(f"{trial.lag_p99_ms:.1f}", f"{trial.cost.cpu:.0%}", verdict(trial, gates)),
        )
    console.print(table)


def verdict(trial: TrialResult, gates: Gates) -> str:
    """Return the outcome of a trial in a word or two."""
    if trial.wrong:
        return "wrong answers"
    if trial.meets(gates):
        return "kept"
    return "generator's limit" if trial.generator_bound(gates) else "missed"


def progress(trial: TrialResult, gates: Gates) -> str:
    """Return a line about a trial, for the progress of a search."""
    return (
        f"{trial.kind:>8} {trial.rate_per_s:>9,.1f}/s: p50 {trial.p50_ms:.1f}, p99 "
        f"{trial.typical_p99_ms:.1f} ms, {trial.failed} failed: {verdict(trial, gates)}"
    )


def capacity_json(result: SearchResult, gates: Gates, conditions: Json) -> Json:
    trial = result.at_capacity(gates)
    return {
        "kind": "capacity",
        **dataclasses.asdict(result.answer),
        "at_least": result.at_least,
        "end": result.end,
        "reason": result.reason,
        "seconds": result.seconds,
        "headline": headline(result, gates),
        "notes": notes(result, gates),
        "at_capacity": None if trial is None else trial_json(trial, gates),
        "conditions": conditions,
        "trials": [trial_json(each, gates) for each in result.trials],
    }


def trial_json(trial: TrialResult, gates: Gates) -> Json:
    """Return the figures of a trial, and whether it met the gates."""
    return {
        **dataclasses.asdict(trial),
        "goodput_per_s": trial.goodput_per_s,
        "failed": trial.failed,
        "fail_ratio": trial.fail_ratio,
        "verdict": verdict(trial, gates),
        "doubts": trial.doubts(),
    }


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}"
