"""Whether refused callers were told the truth: `retry_after_ms` beside what it foretells.

It says when what waited at the refusal will be done. So the truth is the time from the moment at
which the caller read the refusal until everything had been answered that was accepted and had been
sent before: requests that were accepted later do not count, however long they kept the server busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.tensors import Array

LEAST_MS = 20.0  # below it nobody minds: the network alone varies as much
FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Hints:
    """How far the hints of one load, or of several, are from the truth.

    Attributes:
        told_ms: what refused callers were told, shape (n,).
        true_ms: what they should have been told, shape (n,).
    """

    told_ms: Array
    true_ms: Array

    @property
    def judged(self) -> int:
        """How many there are of which hint or truth is above 20 ms."""
        return int(self._counted.sum())

    @property
    def median_ratio(self) -> float | None:
        """Of hint over truth, of those that are judged."""
        return float(np.median(self._ratios)) if self.judged else None

    @property
    def share_within(self) -> float | None:
        """Which share of those that are judged is within a factor 2 of the truth."""
        if not self.judged:
            return None
        ratios = self._ratios
        return float(((ratios >= 1 / FACTOR) & (ratios <= FACTOR)).mean())

    @property
    def _counted(self) -> Array:
        counted: Array = np.maximum(self.told_ms, self.true_ms) > LEAST_MS
        return counted

    @property
    def _ratios(self) -> Array:
        told_ms, true_ms = self.told_ms[self._counted], self.true_ms[self._counted]
        with np.errstate(divide="ignore"):
            ratios: Array = told_ms / true_ms
        return ratios

    def __add__(self, other: Hints) -> Hints:
        """Those of both."""
        return Hints(
            np.concatenate([self.told_ms, other.told_ms]),
            np.concatenate([self.true_ms, other.true_ms]),
        )


NO_HINTS = Hints(np.empty(0), np.empty(0))


def seconds_until_done(done_s: Array, accepted: Array, refused: Array) -> Array:
    """For each refused request the truth, in seconds; 0 where nothing was left to be answered.

    Args:
        done_s: when each request was answered, in the order in which they were sent, shape (n,).
        accepted: which of them were, bool of shape (n,).
        refused: indices of those to look at, shape (k,).

    Returns:
        shape (k,).
    """
    last_s = np.maximum.accumulate(np.where(accepted, done_s, -np.inf))
    until: Array = np.maximum(0.0, last_s[refused] - done_s[refused])
    return until
