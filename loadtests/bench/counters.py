"""What our server's metrics must say after a run: every input computed, or every one cached."""

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
        """What was added."""
        return Counters(
            self.computed - before.computed, self.hits - before.hits, self.joined - before.joined
        )


def settled_counters(server: Server, model: str, batch_s: float) -> Counters:
    """The counters of one model, once they stand still: what was cut off is still computed.

    Args:
        server: has the metrics.
        model: whose counters.
        batch_s: upper bound on the seconds of a batch.

    Raises:
        CheckError: if they do not, or if /metrics does not tell.
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
    """The metrics of a server.

    Raises:
        CheckError: if it answers something else.
    """
    reply = exchange(server.url, "GET", "/metrics", timeout_s=SETTLE_S)
    if reply.status != 200:
        raise CheckError(f"GET /metrics answered {reply.status}")
    return reply.body.decode()


def check_compiled(text: str) -> None:
    """Check that a page of metrics is of a compiled server.

    Raises:
        CheckError: if it is not, or does not say.
    """
    samples = (each for family in text_string_to_metric_families(text) for each in family.samples)
    told = [each.labels.get("compiled") for each in samples if each.name == BUILD]
    if told != ["true"]:
        raise CheckError(f"{BUILD} must say compiled=true, not {told}: run `make compiled`")


def parsed(text: str, model: str) -> Counters:
    """The counters in a page of metrics.

    Raises:
        CheckError: if it does not tell how many items were computed.
    """
    totals = defaultdict[tuple[str, str | None], float](float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("model") == model:
                totals[sample.name, sample.labels.get("result")] += sample.value
    if (COMPUTED, None) not in totals:
        raise CheckError(f"/metrics tells no {COMPUTED} of {model}")
    return Counters(totals[COMPUTED, None], totals[LOOKUPS, "hit"], totals[LOOKUPS, "joined"])


def check(added: Counters, least: int, most: int, *, cached: bool) -> None:
    """Every input was answered by the cache, or every one by the model and none by another request.

    Args:
        added: by the run.
        least: items that were answered.
        most: items that were sent: some are cut off when the time is up.
        cached: which of the two.

    Raises:
        CheckError: if not.
    """
    wanted, others = (added.hits, added.computed) if cached else (added.computed, added.hits)
    if not least <= wanted <= most or others or added.joined:
        where = "in the cache; is it on, and large enough" if cached else "new; do inputs repeat"
        raise CheckError(
            f"{least} items were answered and at most {most} sent, but {added.computed:g} were "
            f"computed, {added.hits:g} answered by the cache and {added.joined:g} by another "
            f"request; all should have been {where}, or does something else use this server?"
        )
