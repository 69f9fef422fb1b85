"""Evaluates rounds: medians, spreads, and ratios within a round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from loadtests.bench.measuring import Measured
from loadtests.bench.workloads import OURS

Figure = Literal["requests_per_s", "p50_ms", "p99_ms", "cpu_us", "busy"]
# By the key of each server, such as `mosec*2`, or `limit`; in the order of their turns.
Round: TypeAlias = Mapping[str, Measured]
Results: TypeAlias = Mapping[str, Sequence[Round]]  # by workload


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize at least one value."""
        return cls(statistics.median(values), min(values), max(values))


def turns(servers: Sequence[str], number: int) -> list[str]:
    """Return the order of a round.

    It varies so that no server always runs after the same one.
    """
    return [servers[at] for at in np.random.default_rng(number).permutation(len(servers))]


def keys(rounds: Sequence[Round]) -> list[str]:
    """Return the measured servers, ours first."""
    found = dict.fromkeys(key for each in rounds for key in sorted(each))
    return sorted(found, key=lambda key: key != OURS)


def values(rounds: Sequence[Round], key: str, figure: Figure) -> list[float]:
    """Return a figure by round."""
    return [getattr(each[key], figure) for each in rounds if key in each]


def ratios(rounds: Sequence[Round], key: str, figure: Figure) -> list[float]:
    """Return ours over another's by round: a temporary slowdown affects both and cancels out."""
    both = [each for each in rounds if key in each and OURS in each and key != OURS]
    pairs = zip(values(both, OURS, figure), values(both, key, figure), strict=True)
    return [ours / theirs for ours, theirs in pairs if theirs > 0]
