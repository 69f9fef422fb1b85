"""Checks our server's metrics after a run: every input was computed, or every one was cached."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from loadtests.bench.servers import RunningServer
from loadtests.errors import LoadTestError
from loadtests.traffic.target import exchange

ITEMS_COMPUTED, BUILD = "torchlane_items_computed_total", "torchlane_build_info"


class CheckError(LoadTestError):
    """A number of this benchmark would be invalid; the message gives the reason."""


def page_of(server: RunningServer) -> str:
    """Get the metrics of a server.

    Raises:
        CheckError: if it answers with another status.
    """
    reply = exchange(server.url, "GET", "/metrics", timeout_s=30)
    if reply.status != 200:
        raise CheckError(f"GET /metrics answered {reply.status}")
    return reply.body.decode()


def check_compiled(text: str) -> None:
    """Check that a page of metrics comes from a compiled server.

    Raises:
        CheckError: if it does not, or does not report it.
    """
    samples = (each for family in text_string_to_metric_families(text) for each in family.samples)
    answers = [each.labels.get("compiled") for each in samples if each.name == BUILD]
    if answers != ["true"]:
        raise CheckError(f"{BUILD} must say compiled=true, not {answers}: run `make compiled`")


def items_computed(text: str, model: str) -> float:
    """Return how many items of a model were computed, by a page of metrics.

    Raises:
        CheckError: if the page does not say.
    """
    samples = (each for family in text_string_to_metric_families(text) for each in family.samples)
    counts = [
        s.value for s in samples if s.name == ITEMS_COMPUTED and s.labels.get("model") == model
    ]
    if not counts:
        raise CheckError(f"/metrics has no {ITEMS_COMPUTED} of {model}")
    return sum(counts)


def check(computed: float, items: int, *, cached: bool) -> None:
    """Check that the cache, or the model alone, answered every input.

    Args:
        computed: items that the run computed, those of unanswered requests included.
        items: answered ones.
        cached: whether the cache must have answered.

    Raises:
        CheckError: if that is not so.
    """
    if computed > 0 if cached else computed < items:
        raise CheckError(
            f"{items} {'cached' if cached else 'new'} items were answered, but {computed:g} were "
            "computed: is the cache on, and large enough, and does nothing else use this server?"
        )
