"""A run in windows of time: how fast requests came, and how long their answers took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PERCENTILES = (50, 95, 99)
MIN_REQUESTS = 20  # of a window or step: of fewer, a percentile says nothing


@dataclass(frozen=True, slots=True)
class Sample:
    """What was counted up to a moment.

    Attributes:
        at_s: on any clock that only goes forward.
        users: that load at this moment.
        counts: latency in milliseconds -> answers, since the start.
    """

    at_s: float
    users: int
    counts: Mapping[float, int]


@dataclass(frozen=True, slots=True)
class Window:
    """What came between two samples.

    Attributes:
        users: all the time; None where they were coming or going.
        counts: latency in milliseconds -> answers.
    """

    seconds: float
    users: int | None
    counts: Mapping[float, int]

    @property
    def requests(self) -> int:
        """How many were answered."""
        return sum(self.counts.values())

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.requests / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """The least latency that so many per cent of the answers did not exceed.

        Raises:
            ValueError: if there is no answer.
        """
        wanted, seen = percent / 100 * self.requests, 0
        for latency_ms in sorted(self.counts):
            seen += self.counts[latency_ms]
            if seen >= wanted:
                return latency_ms
        raise ValueError("no answer, no percentile")


@dataclass
class Recorder:
    """Takes samples and keeps what came between them, and of the samples only the last.

    Attributes:
        windows: those with enough requests.
    """

    windows: list[Window] = field(default_factory=list)
    _last: Sample | None = None

    def take(self, now_s: float, runner: Any) -> None:
        """Sample what Locust's runner has counted; a master's counts are those of its workers."""
        self.add(Sample(now_s, runner.user_count, dict(runner.stats.total.response_times)))

    def add(self, sample: Sample) -> None:
        """End a window and begin the next; where the counts began anew, there is none."""
        before, self._last = self._last, sample
        if before is None or sample.at_s <= before.at_s:
            return
        counts = Counter(sample.counts)
        counts.subtract(before.counts)
        if any(count < 0 for count in counts.values()):
            return
        users = sample.users if sample.users == before.users else None
        window = Window(sample.at_s - before.at_s, users, +counts)
        if window.requests >= MIN_REQUESTS:
            self.windows.append(window)


def steps(found: Sequence[Window]) -> list[Window]:
    """Windows of equal numbers of users as one, fewest users first."""
    merged: dict[int, Window] = {}
    for window in found:
        if window.users is None:
            continue
        others = merged.get(window.users, Window(0.0, window.users, {}))
        counts = Counter(others.counts) + Counter(window.counts)
        merged[window.users] = Window(others.seconds + window.seconds, window.users, counts)
    return [merged[users] for users in sorted(merged)]
