"""Rounds and what they say: medians, spreads, and ratios of neighbours."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loadtests.bench.measuring import Measured
from loadtests.bench.workloads import OURS

Figure = Literal["requests_per_s", "p50_ms", "p99_ms", "cpu_us", "busy"]
BETWEEN = 3  # others that are measured between two runs of our server


@dataclass(frozen=True, slots=True)
class Entry:
    """One run; the key is the server's, such as `mosec+plan`, or `limit`."""

    key: str
    measured: Measured


Round: TypeAlias = Sequence[Entry]  # in the order in which they were measured
Results: TypeAlias = Mapping[str, Sequence[Round]]  # by workload


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


def interleaved(others: Sequence[str]) -> list[str]:
    """The order of a round: ours first and last, and again after every three others."""
    order = [OURS]
    for at in range(0, len(others), BETWEEN):
        order += [*others[at : at + BETWEEN], OURS]
    return order


def keys(rounds: Sequence[Round]) -> list[str]:
    """The servers that were measured, ours first."""
    return list(dict.fromkeys(entry.key for each in rounds for entry in each))


def values(rounds: Sequence[Round], key: str, figure: Figure) -> list[float]:
    """A figure by round; for our server, which runs several times in a round, the mean."""
    found = [
        [getattr(entry.measured, figure) for entry in each if entry.key == key] for each in rounds
    ]
    return [statistics.fmean(numbers) for numbers in found if numbers]


def ratios(rounds: Sequence[Round], key: str, figure: Figure) -> list[float]:
    """Ours over another's by round, each time by our runs just before and just after it.

    What slows the machine for a while slows neighbours alike, and cancels out.
    """
    made = []
    for each in rounds:
        for at, entry in enumerate(each):
            if entry.key == key and key != OURS:
                ours = _neighbours(each, at, figure)
                theirs = getattr(entry.measured, figure)
                if ours and theirs > 0:
                    made.append(statistics.fmean(ours) / theirs)
    return made


def _neighbours(each: Round, at: int, figure: Figure) -> list[float]:
    before = [entry for entry in each[:at] if entry.key == OURS][-1:]
    after = [entry for entry in each[at + 1 :] if entry.key == OURS][:1]
    return [getattr(entry.measured, figure) for entry in (*before, *after)]
