"""Counters and histograms, updated all over the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.samples import Exemplar

from app.metrics.tally import TracedObservation

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
# Ten to the fifths: versions of a model are compared by the quantiles of these.
LATENCIES = (
    *(0.0001, 0.00016, 0.00025, 0.0004, 0.00063),
    *(0.001, 0.0016, 0.0025, 0.004, 0.0063),
    *(0.01, 0.016, 0.025, 0.04, 0.063),
    *(0.1, 0.16, 0.25, 0.4, 0.63),
    *(1, 1.6, 2.5, 4, 6.3, 10, 30),
)
ROUND_TRIPS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 1)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
LABELS = ("model", "version")
REPLICA_LABELS = ("replica", "device")
LOG_LINES_DROPPED = "torchlane_log_lines_dropped"  # also a parent's, which has no other counters


class BulkHistogram(Histogram):
    """A histogram that accepts many observations at once."""

    def add(
        self, counts: Sequence[int], total: float, observations: Mapping[int, TracedObservation]
    ) -> None:
        """Add observations to each bucket.

        Args:
            counts: number of observations in each bucket.
            total: sum of the observations.
            observations: the exemplar of each bucket, if any.
        """
        self._sum.inc(total)
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        for at, (trace_id, amount, moment) in observations.items():
            self._buckets[at].set_exemplar(Exemplar({"trace_id": trace_id}, amount, moment))


class Counters:
    """Counters and histograms in a registry, by name without the prefix and the unit."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "torchlane_requests",
            "Finished requests for predictions, by route, status and code ('ok', or the error's).",
            ("route", "status", "code"),
            registry=registry,
        )
        self.request_seconds = BulkHistogram(
            "torchlane_request_seconds",
            "Seconds from a request's head to the last byte of its answer, by route and outcome "
            "('ok', 'client_error' below status 500, 'server_error' from there).",
            ("route", "outcome"),
            buckets=SECONDS,
            registry=registry,
        )
        self.connections_cut = Counter(
            "torchlane_connections_cut",
            "Connections closed because of what the client sent or failed to send, by code.",
            ("code",),
            registry=registry,
        )
        self.key_requests = Counter(
            "torchlane_key_requests",
            "Requests by the name of their API key and the result of the access check: "
            "'admitted', 'rate_limited' or 'forbidden'.",
            ("key", "result"),
            registry=registry,
        )
        self.key_items = Counter(
            "torchlane_key_items",
            "Items in requests, by the name of the API key.",
            ("key",),
            registry=registry,
        )
        self.items = Counter(
            "torchlane_items",
            "Items by outcome: 'ok', an error code, or 'abandoned' when the client disconnected.",
            (*LABELS, "outcome"),
            registry=registry,
        )
        self.model_requests = Counter(
            "torchlane_model_requests",
            "Finished requests of a model by result: 'computed', 'cached' (nothing was computed "
            "for it) or 'failed' (also in part, rejected or abandoned).",
            (*LABELS, "result"),
            registry=registry,
        )
        self.model_request_seconds = Counter(
            "torchlane_model_request_seconds",
            "Seconds of these requests by part: 'ok' and 'failed' from submission to outcome, and "
            "of those without a failure 'queue' and 'compute' of their slowest item.",
            (*LABELS, "part"),
            registry=registry,
        )
        self.model_latency_seconds = BulkHistogram(
            "torchlane_model_latency_seconds",
            "Seconds from submission to outcome of a model's computed requests.",
            LABELS,
            buckets=LATENCIES,
            registry=registry,
        )
        self.items_computed = Counter(
            "torchlane_items_computed",
            "Unique items that went through the model.",
            LABELS,
            registry=registry,
        )
        self.batch_size = BulkHistogram(
            "torchlane_batch_size",
            "Items per batch.",
            LABELS,
            buckets=BATCH_SIZES,
            registry=registry,
        )
        self.queue_seconds = BulkHistogram(
            "torchlane_queue_seconds",
            "Seconds from acceptance to the start of the batch, per computed item.",
            LABELS,
            buckets=SECONDS,
            registry=registry,
        )
        self.compute_seconds = BulkHistogram(
            "torchlane_compute_seconds",
            "Seconds in the backend, per batch.",
            LABELS,
            buckets=SECONDS,
            registry=registry,
        )
        self.cache_lookups = Counter(
            "torchlane_cache_lookups",
            "Items by how they were answered: 'hit', 'miss' or 'joined' (a computation in flight).",
            (*LABELS, "result"),
            registry=registry,
        )
        self.shared_cache_lookups = Counter(
            "torchlane_shared_cache_lookups",
            "Items that were not in the server's own cache, by the result of the shared cache: "
            "'hit', 'miss', 'timeout', 'error', 'wrong' (a value that is not of this item), 'open' "
            "(not queried, because it has failed), 'skipped' (not queried, because computing is "
            "faster or the deadline is too near) or 'left' (no request waits any more).",
            (*LABELS, "result"),
            registry=registry,
        )
        self.shared_cache_writes = Counter(
            "torchlane_shared_cache_writes",
            "Predictions for the shared cache by result: 'stored', 'dropped' or 'error'.",
            ("result",),
            registry=registry,
        )
        self.shared_cache_seconds = BulkHistogram(
            "torchlane_shared_cache_seconds",
            "Seconds of a query to the shared cache, until its answer was read.",
            buckets=ROUND_TRIPS,
            registry=registry,
        )
        self.batch_splits = Counter(
            "torchlane_batch_splits",
            "Batches that failed as a whole and were split.",
            LABELS,
            registry=registry,
        )
        self.items_moved = Counter(
            "torchlane_items_moved",
            "Items moved to another replica after theirs failed.",
            LABELS,
            registry=registry,
        )
        self.out_of_memory = Counter(
            "torchlane_out_of_memory",
            "Batches too large for a device's memory; they are split, and later ones are smaller.",
            LABELS,
            registry=registry,
        )
        self.replica_batches = Counter(
            "torchlane_replica_batches",
            "Batches that a replica ran, successfully or not.",
            REPLICA_LABELS,
            registry=registry,
        )
        self.replica_items = Counter(
            "torchlane_replica_items",
            "Items of these batches.",
            REPLICA_LABELS,
            registry=registry,
        )
        self.replica_busy_seconds = Counter(
            "torchlane_replica_busy_seconds",
            "Seconds from the start of these batches to their end, as the event loop saw them.",
            REPLICA_LABELS,
            registry=registry,
        )
        self.replica_compute_seconds = Counter(
            "torchlane_replica_compute_seconds",
            "Seconds of these batches in the backend.",
            REPLICA_LABELS,
            registry=registry,
        )
        self.replica_device_seconds = Counter(
            "torchlane_replica_device_seconds",
            "Seconds of these batches by the device's own clock, if it has one, by stage: "
            "'copy_in', 'compute' or 'copy_out'. Copies may overlap the compute of other batches.",
            (*REPLICA_LABELS, "stage"),
            registry=registry,
        )
        self.replica_faults = Counter(
            "torchlane_replica_faults",
            "Replicas that broke, by kind: 'error', 'hung' or 'lost' (with its device).",
            (*REPLICA_LABELS, "kind"),
            registry=registry,
        )
        self.log_lines_dropped = Counter(
            LOG_LINES_DROPPED,
            "Lines for stderr or stdout that nobody read in time, or that could not be written.",
            registry=registry,
        )
        self.handler_restarts = Counter(
            "torchlane_handler_restarts",
            "Processes of a handler that ended without being told to, by cause: 'died', 'memory', "
            "'stuck', 'frames' or 'start'.",
            (*LABELS, "cause"),
            registry=registry,
        )
        self.handler_output_dropped = Counter(
            "torchlane_handler_output_dropped",
            "Lines of a handler's output that were not logged, because there were too many.",
            LABELS,
            registry=registry,
        )
        self.model_loads = Counter(
            "torchlane_model_loads",
            "Versions by result: 'loaded', 'failed' or 'retired'; on demand also 'warmed' and "
            "'cooled'.",
            (*LABELS, "result"),
            registry=registry,
        )
        self.shadow_items = Counter(
            "torchlane_shadow_items",
            "Copied items by the version that computed them and its answer: 'agrees', "
            "'same_label', 'differs', 'failed' or 'dropped' (not computed).",
            (*LABELS, "result"),
            registry=registry,
        )
        self.cold_refused = Counter(
            "torchlane_cold_refused",
            "Requests for a model on demand that were rejected because there was no room for it.",
            registry=registry,
        )
