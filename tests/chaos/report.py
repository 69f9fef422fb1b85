"""What a run came to, in words and figures; on failure all that is needed to see it again."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version

from tests.chaos.plan import Outcome
from tests.chaos.verdict import OFFENCES, Verdict

COLUMNS = ("round", "workers", "cache", "requests", *(each.name.lower() for each in Verdict))
COLUMNS += ("switches", "seconds", "live ms", "unread MiB", "grown MiB", "other problems")


def header(seed: int) -> str:
    """Which run this is, of what, on what."""
    versions = ", ".join(f"{each} {version(each)}" for each in ("torchlane", "torch", "uvicorn"))
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return f"chaos, seed {seed}; {versions}, Python {platform.python_version()}; {machine}"


def table(outcomes: Sequence[tuple[int, Outcome]]) -> str:
    """A line for each round."""
    lines = [COLUMNS]
    for number, outcome in outcomes:
        plan, counts, figures = outcome.plan, outcome.checker.counts, outcome.figures
        lines.append(
            (
                str(number),
                f"{plan.servers} servers" if plan.servers else str(plan.workers),
                str(plan.cache_bytes),
                str(counts.total()),
                *(str(counts[each]) for each in Verdict),
                f"{figures.get('switches', 0):.0f}",
                f"{figures.get('seconds', 0):.1f}",
                f"{figures.get('live_ms', 0):.0f}",
                f"{figures.get('unread_mib', 0):.1f}",
                f"{figures['grown_mib']:.1f}" if "grown_mib" in figures else "-",
                str(len(outcome.problems)),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def totals(outcomes: Sequence[tuple[int, Outcome]]) -> str:
    """What was injected, and how was asked."""
    faults, kinds, codes, restarts = (Counter[str]() for _ in range(4))
    for _, outcome in outcomes:
        faults += outcome.faults
        kinds += outcome.checker.kinds
        for (handler, code), count in outcome.checker.handler.codes.items():
            codes[f"{handler} {code}"] += count
        restarts += outcome.restarts
    return (
        f"injected: {_listed(faults)}\nasked: {_listed(kinds)}\n"
        f"of the handlers: {_listed(codes)}; restarts: {_listed(restarts)}"
    )


def failures(seed: int, outcomes: Sequence[tuple[int, Outcome]]) -> str:
    """Everything that is wrong, and how to see it again; empty if nothing is."""
    told = []
    for number, outcome in outcomes:
        if not outcome.is_good:
            told.append(f"round {number}; again: make chaos CHAOS_SEED={seed} CHAOS_ROUND={number}")
            told += [f"  {problem}" for problem in outcome.problems]
            told += [str(offence) for offence in outcome.checker.offences]
            told.append(f"  {sum(outcome.checker.counts[each] for each in OFFENCES)} in all")
    return "\n".join(told)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "nothing"
