"""What can become of a request."""

from __future__ import annotations

import enum


class Verdict(enum.Enum):
    """What became of a request."""

    RIGHT = "right"
    REFUSED = "refused, rightly"
    LEFT = "left by its client"
    CUT = "cut by a stop or a kill"
    LOST = "lost"
    DOUBLED = "doubled"
    WRONG = "wrong"
    MISDELIVERED = "misdelivered"
    UNEXPECTED = "unexpected status"


OFFENCES = (
    *(Verdict.LOST, Verdict.DOUBLED, Verdict.WRONG, Verdict.MISDELIVERED, Verdict.UNEXPECTED),
)


class Misjudged(Exception):
    """An answer is not right."""

    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.verdict = verdict
