"""Tallies give the same counts as prometheus_client itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Counter, Histogram, generate_latest

from app.metrics import Metrics
from app.metrics.counters import SECONDS
from app.metrics.own import OwnRegistry
from app.metrics.tally import HistogramTally, Tally, TracedObservation
from app.types import ModelId

BOUNDS = (0.5, 1, 2.5)


def test_histogram_flushes_only_new_observations() -> None:
    handed: list[tuple[list[int], float]] = []
    seen: list[dict[int, tuple[str, float]]] = []

    def take(counts: Sequence[int], total: float, found: Mapping[int, TracedObservation]) -> None:
        handed.append((list(counts), total))
        seen.append({at: (each.trace_id, each.amount) for at, each in found.items()})

    tally = HistogramTally(BOUNDS, take)
    tally.flush()
    assert handed == []
    for amount in (0.25, 0.5, 0.75, 8):
        tally.observe(amount)
    tally.flush()
    tally.flush()
    assert handed == [([2, 1, 0, 1], 9.5)]
    tally.observe(2)
    tally.flush()
    assert handed[1:] == [([0, 0, 1, 0], 2)]
    assert seen == [{}, {}]
    for amount, trace_id in ((0.25, "a"), (0.5, "b"), (0.5, ""), (3, "c")):
        tally.observe(amount, trace_id)
    tally.flush()
    assert seen[2:] == [{0: ("b", 0.5), 3: ("c", 3)}]


@given(st.lists(st.sampled_from((0.0, 4e-4, 5e-4, 0.5, 0.6, 1, 29.9, 30, 30.1, 1e9)), max_size=20))
def test_collected_samples_match_the_library(amounts: list[float]) -> None:
    metrics, plain = Metrics(), OwnRegistry()
    counter = Counter("torchlane_items_computed", "x", registry=plain)
    histogram = Histogram("torchlane_queue_seconds", "x", buckets=SECONDS, registry=plain)
    ours = metrics.model(ModelId("m", 1))
    for number, amount in enumerate(amounts):
        if number % 7 == 3:
            generate_latest(metrics.registry)  # a scrape in between changes nothing
        ours.computed.inc(number)
        ours.queue_seconds.observe(amount)
        counter.inc(number)
        histogram.observe(amount)
    for sample in [sample for family in plain.collect() for sample in family.samples]:
        labels = {"model": "m", "version": "1", **sample.labels}
        got = metrics.registry.get_sample_value(sample.name, labels)
        assert got == pytest.approx(sample.value), sample


def test_counter_flushes_only_new_counts() -> None:
    handed: list[float] = []
    tally = Tally(handed.append)
    tally.flush()
    assert handed == []
    tally.inc()
    tally.inc(4)
    tally.flush()
    tally.flush()
    assert handed == [5]
    tally.inc(2)
    tally.flush()
    assert handed == [5, 2]
