"""What this project demands of itself: the least and the aim of each figure, and whether it is met.

Every figure is a ratio of neighbours in one round; its median over the rounds is what counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from loadtests.bench.references import title_of
from loadtests.bench.workloads import BARE, LIMIT, LITSERVE, MOSEC, OURS, PLAIN

Verdict = Literal["aim met", "met", "missed", "not judged", "not measured"]
LEAST_ROUNDS = 3
HALF_LOAD = "open-loop at 0.5"
# Triton's response cache answered 8,000/s on a machine whose bare answer was 32,000/s.
TRITON_CACHE_OF_BARE = 8.0 / 32.0


@dataclass(frozen=True, slots=True)
class Demand:
    """One line of the acceptance.

    Attributes:
        what: the figure, for people; "over X" is requests per second over those of X.
        least: at least so much (at most, where `lower` is better).
        aim: what we want beyond that.
        group: demands of one group are alternatives: one of them met is enough.
    """

    workload: str
    what: str
    least: float
    aim: float | None = None
    lower: bool = False
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A demand and what was measured.

    Attributes:
        rounds: a number each; none if it was not measured.
        doubt: why these numbers prove nothing, though there are some.
    """

    demand: Demand
    rounds: tuple[float, ...]
    doubt: str | None = None

    @property
    def median(self) -> float | None:
        """Over the rounds."""
        return statistics.median(self.rounds) if self.rounds else None

    @property
    def verdict(self) -> Verdict:
        """Whether it is met."""
        value, demand = self.median, self.demand
        if value is None:
            return "not measured"
        if self.doubt is not None:
            return "not judged"
        if demand.aim is not None and _reaches(value, demand.aim, lower=demand.lower):
            return "aim met"
        return "met" if _reaches(value, demand.least, lower=demand.lower) else "missed"


Ratio = Callable[[str, str], Sequence[float]]  # workload, other's key -> ours over theirs, by round
Line = tuple[Demand, Callable[[Mapping[str, Ratio]], Sequence[float]]]


def _speed(workload: str, other: str, least: float, aim: float | None = None, **more: str) -> Line:
    what = f"over {title_of(other)}"
    demand = Demand(workload, what, least, aim, group=more.get("group"))
    return demand, lambda ratios: ratios["requests_per_s"](workload, other)


def _lines() -> tuple[Line, ...]:
    return (
        _speed("json-32", MOSEC, 1.6, 2.0),
        _speed("json-32", PLAIN, 8.0),
        _speed("json-32", LITSERVE, 15.0),
        _speed("json-128", MOSEC, 1.3, 1.6),
        _speed("binary-32", MOSEC, 1.5, 2.0),
        _speed("binary-32", BARE, 0.33),
        _speed("binary-128", MOSEC, 1.0, 1.2),
        _speed("json-64-shared", MOSEC, 1.2, 1.6),
        _speed("json-64-shared", f"{MOSEC}*2", 1.2, 1.6),
        _speed("batch-json", MOSEC, 2.0, 2.5),
        _speed("batch-json", LIMIT, 0.5),
        _speed("zipf", BARE, 0.5, 0.7),
        (
            Demand("zipf", "over Triton's cache (bare / 4)", 2.0),
            lambda ratios: [
                ratio / TRITON_CACHE_OF_BARE for ratio in ratios["requests_per_s"]("zipf", BARE)
            ],
        ),
        (
            Demand("one-connection", "p50 over plain FastAPI", 0.7, 0.5, lower=True),
            lambda ratios: ratios["p50_ms"]("one-connection", PLAIN),
        ),
        (
            Demand("one-connection", "p99 over p50 at half load", 3.0, lower=True),
            lambda ratios: ratios["p99_over_p50"](HALF_LOAD, OURS),
        ),
        _speed("image-binary", MOSEC, 2.0, group="copies"),
        (
            Demand("image-binary", "over reading and forward alone", 0.7, group="copies"),
            _reading_and_forward,
        ),
    )


def _reading_and_forward(ratios: Mapping[str, Ratio]) -> Sequence[float]:
    """Ours over what a server could do that does nothing but read bodies and run forwards.

    It would take as long as the bare answer, which reads the body, and the forward together.
    """
    speed = ratios["requests_per_s"]
    over_bare, over_forward = speed("image-binary", BARE), speed("image-binary", LIMIT)
    if len(over_bare) != len(over_forward):  # one was left out on the way: no round has both
        return []
    return [bare + forward for bare, forward in zip(over_bare, over_forward, strict=True)]


def judge(
    ratios: Mapping[str, Ratio], doubts: Callable[[Demand], str | None] = lambda _: None
) -> list[Judged]:
    """Every demand, in the order of the table.

    Args:
        doubts: why the numbers of a demand prove nothing; None: they do.
        ratios: `requests_per_s` and `p50_ms`, ours over another's by workload and key, and
            `p99_over_p50` of one server; each gives one number per round, none if not measured.
    """
    found = [(demand, tuple(figure(ratios))) for demand, figure in _lines()]
    return [Judged(demand, rounds, _too_few(rounds) or doubts(demand)) for demand, rounds in found]


def _too_few(rounds: Sequence[float]) -> str | None:
    return f"{len(rounds)} of {LEAST_ROUNDS} rounds" if len(rounds) < LEAST_ROUNDS else None


def is_met(judged: Judged, among: Sequence[Judged]) -> bool:
    """Whether it is met, by itself or by an alternative of its group."""
    group = judged.demand.group
    alternatives = [other for other in among if group and other.demand.group == group]
    return any(each.verdict in ("met", "aim met") for each in (judged, *alternatives))


def _reaches(value: float, wanted: float, *, lower: bool) -> bool:
    return value <= wanted if lower else value >= wanted
