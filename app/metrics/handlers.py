"""What the processes of one handler are counted as: the metrics of a model, and two of its own."""

from __future__ import annotations

from app.metrics import Metrics
from app.metrics.bound import labels_of
from app.types import ModelId


class HandlerCounts:
    """Counts a handler's requests, restarts and output; implements `HandlerMetrics`.

    Args:
        metrics: of the server.
        model: name and version of the handler.
    """

    def __init__(self, metrics: Metrics, model: ModelId) -> None:
        self._metrics = metrics
        self._labels = labels_of(model)
        self._model = metrics.model(model)

    def ended(self, code: str, queue_s: float, run_s: float) -> None:
        """Count a request by its code, as an item of its own."""
        self._model.outcome(code)
        if code == "ok":
            self._model.request(queue_s + run_s, queue_s, run_s, computed=True)
        else:
            self._model.count_failure(queue_s + run_s)
        if run_s:
            self._model.queue_seconds.observe(queue_s)
            self._model.compute_seconds.observe(run_s)

    def restarted(self, cause: str) -> None:
        """Count a process that ended without being told to."""
        self._metrics.handler_restarts.labels(*self._labels, cause).inc()

    def dropped_output(self, lines: int) -> None:
        """Count lines of output that were not logged."""
        self._metrics.handler_output_dropped.labels(*self._labels).inc(lines)
