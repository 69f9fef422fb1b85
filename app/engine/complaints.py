"""A model's errors about single items: bounded and printable in the log, at a limited rate.

Callers may send bad items as fast as the network allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import structlog

from app.telemetry.line_rate import LineRate
from app.types import ModelId

LOG = structlog.get_logger(__name__)

MOST_CHARACTERS = 1000
HEAD_CHARACTERS = 200  # of those; the end of TorchScript's messages has the cause
MOST_NAMED = 10  # requests in one line
BURST, PER_S = 10, 1  # lines at once, and per second after that


def in_short(error: Exception) -> str:
    """An error's message on one line with at most `MOST_CHARACTERS` printable characters."""
    text = str(error)
    if len(text) > MOST_CHARACTERS:
        tail = MOST_CHARACTERS - HEAD_CHARACTERS - len(" ... ")
        text = f"{text[:HEAD_CHARACTERS]} ... {text[-tail:]}"
    return " ".join("".join([each if each.isprintable() else " " for each in text]).split())


class Complaints:
    """Logs errors about the items of one model, at a limited rate."""

    def __init__(self) -> None:
        self._rate = LineRate(BURST, PER_S)

    def write(
        self,
        model: ModelId,
        errors: Sequence[Exception],
        labels: Callable[[], Iterable[bytes]],
        now: float,
        trace_ids: Callable[[], Iterable[str]],
    ) -> None:
        """Write one line about a batch, if the rate limit allows it.

        Args:
            model: the model of the items.
            errors: errors of the failed items; at least one.
            labels: returns the labels of the waiting requests; called only if a line is written.
            now: the current time, on the engine's clock.
            trace_ids: returns the trace ids of these requests; called only if a line is written.
        """
        if not self._rate.allows(now):
            return
        requests = list(dict.fromkeys(labels()))
        traces = list(dict.fromkeys(trace_ids()))
        left_out = self._rate.take_left_out()
        LOG.error(
            "model_failed",
            model=str(model),
            items=len(errors),
            first=in_short(errors[0]),
            requests=len(requests),
            request_ids=[each.decode("ascii", "replace") for each in requests[:MOST_NAMED]],
            **({"trace_ids": traces[:MOST_NAMED]} if traces else {}),
            **({"batches_left_out": left_out} if left_out else {}),
        )
