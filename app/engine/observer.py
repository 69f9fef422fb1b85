"""Reports batches to metrics, to the log and to the traces of their requests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog

from app.engine.batch_runner import Report
from app.engine.pool import Batch, Took
from app.engine.queue import ModelQueue, Ticket
from app.engine.replica import Replica
from app.errors import BackendFailed
from app.metrics import Metrics
from app.telemetry.tracing import BatchRecord, Tracing

LOG = structlog.get_logger(__name__)


class BatchObserver:
    """Observes batches while the requests that wait for their items are known.

    Args:
        replicas: all replicas.
        metrics: where to count their work.
        tracing: notified of each batch.
    """

    def __init__(self, replicas: Sequence[Replica], metrics: Metrics, tracing: Tracing) -> None:
        self._tracing = tracing
        self._ran = {
            each.name: metrics.batches_of(each.name, str(each.device)) for each in replicas
        }

    def began(self, batch: Batch) -> None:
        """A batch is about to be handed over."""
        batch.queue.metrics.batch_size.observe(len(batch.tickets))
        if self._tracing.followed or self._tracing.wants_batches:
            self._note_traces(batch, 0.0)

    def ended(self, batch: Batch, report: Report, took: Took, now: float) -> None:
        """A batch has ended; its items are not settled yet."""
        queue, replica, tickets = batch.queue, batch.replica, batch.tickets
        busy_s = max(0.0, now - took.began)
        self._ran[replica.name].count_batch(len(tickets), busy_s, report.compute_s, report.device)
        if batch.record is not None or self._tracing.followed:  # a traced request may have joined
            self._note_traces(batch, now - batch.started)
        trace_id = ""
        if batch.record is not None:
            self._tell(batch.record, batch, report, took)
            trace_id = batch.record.trace_id
        for ticket, outcome in zip(tickets, report.outcomes, strict=True):
            if outcome is not None:
                queue.metrics.computed.amount += 1
                its_trace = queue.flights.trace_id(ticket) if trace_id else ""
                queue.metrics.queue_seconds.observe(took.began - ticket.enqueued_at, its_trace)
        if report.forwards:
            queue.metrics.compute_seconds.observe(report.compute_s, trace_id)
        if report.forwards > 1:
            queue.metrics.splits.inc()
        if report.out_of_memory_at:
            queue.metrics.out_of_memory.inc()
            most = batch.cost.most_of(batch.length)
            LOG.warning(
                "batch_limit_lowered", model=str(queue.model), replica=replica.name, items=most
            )
        if report.errors:
            self._complain(batch, report, now)

    def _complain(self, batch: Batch, report: Report, now: float) -> None:
        queue = batch.queue
        failed = [
            ticket
            for ticket, outcome in zip(batch.tickets, report.outcomes, strict=True)
            if isinstance(outcome, BackendFailed)
        ]
        labels = partial(queue.flights.labels, failed)
        trace_ids = partial(_trace_ids, queue, failed)
        queue.complaints.write(queue.model, report.errors, labels, now, trace_ids)

    def _tell(self, record: BatchRecord, batch: Batch, report: Report, took: Took) -> None:
        batch.begins(took.began)
        record.compute_s, record.forwards = report.compute_s, report.forwards
        record.errors = report.errors
        if report.fault is not None:
            record.fault = type(report.fault).__name__
            record.errors = [report.fault, *report.errors]
        self._tracing.batch_ended(record)

    def _note_traces(self, batch: Batch, ago_s: float) -> None:
        """Add the requests that now wait for a batch to its record, if sinks follow them."""
        traces = batch.queue.flights.traces(batch.tickets)
        record = batch.record
        if record is None and (traces or self._tracing.wants_batches):
            model, replica, size = batch.queue.model, batch.replica, len(batch.tickets)
            record = BatchRecord(model, replica.name, str(replica.device), size, batch.length)
            record.serving = batch.serving
            record.handed_over -= ago_s
            batch.record = record
            if not batch.prefetched:
                batch.begins(batch.started)
        if record is not None:
            record.add(traces)


def _trace_ids(queue: ModelQueue, tickets: Sequence[Ticket]) -> list[str]:
    """The trace ids of the requests for these items."""
    return [each.trace_id for each in queue.flights.traces(tickets) if each.trace_id]
