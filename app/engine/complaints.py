"""A model's errors about single items: bounded and printable in the log, at a limited rate.

Callers may send bad items as fast as the network allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import structlog

from app.types import ModelId

LOG = structlog.get_logger(__name__)

MOST_CHARACTERS = 1000
HEAD_CHARACTERS = 200  # of those; the end of TorchScript's messages has the cause
MOST_NAMED = 10  # requests in one line
BURST = 10  # lines at once; then one per `LINE_S`
LINE_S = 1.0


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
        self._lines = float(BURST)  # lines that may be written now
        self._since = 0.0
        self._batches_left_out = 0

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
        self._lines = min(float(BURST), self._lines + (now - self._since) / LINE_S)
        self._since = now
        if self._lines < 1.0:
            self._batches_left_out += 1
            return
        self._lines -= 1.0
        requests = list(dict.fromkeys(labels()))
        traces = list(dict.fromkeys(trace_ids()))
        left_out, self._batches_left_out = self._batches_left_out, 0
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
