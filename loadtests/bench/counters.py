"""Checks our server's metrics after a run: every input was computed, or every one was cached."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from loadtests.bench.answers import CheckError
from loadtests.bench.servers import Server
from loadtests.traffic.target import exchange

SETTLE_S = 30.0
COMPUTED, LOOKUPS = "torchlane_items_computed_total", "torchlane_cache_lookups_total"
BUILD = "torchlane_build_info"


@dataclass(frozen=True, slots=True)
class Counters:
    """Items since the server started."""

    computed: float
    hits: float
    joined: float

    def since(self, before: Counters) -> Counters:
        """Return the difference."""
        return Counters(
            self.computed - before.computed, self.hits - before.hits, self.joined - before.joined
        )


def settled_counters(server: Server, model: str, batch_s: float) -> Counters:
    """Return the counters of one model once they are stable: abandoned requests still compute.

    Args:
        server: with the metrics.
        model: its name.
        batch_s: upper bound on the seconds of a batch.

    Raises:
        CheckError: if they never are, or /metrics lacks them.
    """
    give_up_at, before = time.monotonic() + SETTLE_S, None
    while time.monotonic() < give_up_at:
        now = parsed(page_of(server), model)
        if now == before:
            return now
        before = now
        time.sleep(batch_s)
    raise CheckError(f"items are still computed {SETTLE_S:g} s after the load has ended")


def page_of(server: Server) -> str:
    """Get the metrics of a server.

    Raises:
        CheckError: if it answers with another status.
    """
    reply = exchange(server.url, "GET", "/metrics", timeout_s=SETTLE_S)
    if reply.status != 200:
        raise CheckError(f"GET /metrics answered {reply.status}")
    return reply.body.decode()


def check_compiled(text: str) -> None:
    """Check that a page of metrics comes from a compiled server.

    Raises:
        CheckError: if it does not, or does not report it.
    """
    samples = (each for family in text_string_to_metric_families(text) for each in family.samples)
    told = [each.labels.get("compiled") for each in samples if each.name == BUILD]
    if told != ["true"]:
        raise CheckError(f"{BUILD} must say compiled=true, not {told}: run `make compiled`")


def parsed(text: str, model: str) -> Counters:
    """Parse the counters in a page of metrics.

    Raises:
        CheckError: if it has no number of computed items.
    """
    totals = defaultdict[tuple[str, str | None], float](float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("model") == model:
                totals[sample.name, sample.labels.get("result")] += sample.value
    if (COMPUTED, None) not in totals:
        raise CheckError(f"/metrics has no {COMPUTED} of {model}")
    return Counters(totals[COMPUTED, None], totals[LOOKUPS, "hit"], totals[LOOKUPS, "joined"])


def check(added: Counters, least: int, most: int, *, cached: bool) -> None:
    """Check that the cache, or the model alone without joined requests, answered every input.

    Args:
        added: by the run.
        least: items that were answered.
        most: items that were sent: some are abandoned when the time is up.
        cached: whether the cache must have answered.

    Raises:
        CheckError: if that is not so.
    """
    wanted, others = (added.hits, added.computed) if cached else (added.computed, added.hits)
    if not least <= wanted <= most or others or added.joined:
        where = "in the cache; is it on, and large enough" if cached else "new; do inputs repeat"
        raise CheckError(
            f"{least} items were answered and at most {most} sent, but {added.computed:g} were "
            f"computed, {added.hits:g} answered by the cache and {added.joined:g} by another "
            f"request; all should have been {where}, or does something else use this server?"
        )
