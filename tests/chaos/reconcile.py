"""Compares what clients were told and what was injected with what the server has counted.

Requests that their clients have left are counted by the server in one way or another, so there it
is bounds that are checked; everything else must be exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.chaos.checker import Told
from tests.chaos.journal import REPLICA_FAULTS, Ledger
from tests.chaos.relayed import ENDS, Acts
from tests.chaos.scrape import Scrape
from tests.chaos.truth import HANDLERS, MODELS

# These are no predictions, or never reach a server.
NOT_COUNTED = frozenset({"not_found", "method_not_allowed", "request_late"})
REFUSED = "503"  # a balancer asks another server then
UNSEEN = 2  # storms, at whose ends the operator leaves
BEGUN = 0.25  # at least, of the streams that nobody reads: some are refused, or left too early
MANY = 8  # items: chance does not make most of so many be given up
IMPATIENT = "flooded"  # its callers allow so little time that most of them may
OF_HANDLER = ("handler_failed", "handler_died", "handler_memory", "handler_timeout")
INITIAL = len(MODELS) + len(HANDLERS)
COUNTED = ("ok", "backend_failed", "non_finite_output")


def reconcile(
    found: Scrape, told: Told, ledgers: Mapping[str, Ledger], *, balanced: bool = False
) -> list[str]:
    """What does not fit, one line each; the servers must be idle, and none of them was killed.

    Args:
        found: metrics of all servers.
        told: what their clients know.
        ledgers: model -> what was done to it.
        balanced: clients do not know of each rejection: another server was asked.
    """
    problems = [*_requests(found, told, balanced=balanced), *_replicas(found, ledgers)]
    for model in MODELS:
        problems += _items(found, told, model)
        ledger = ledgers.get(model, Ledger())
        problems += _batches(found, ledger, model)
        problems += _moves(found, ledger, model, told.unknown_items[model])
        problems += _failures(told, ledger, model)
    return problems


def reconcile_versions(found: Scrape, switches: int, refused: int, servers: int = 1) -> list[str]:
    """What was published, and what became of it; the operator may not have waited for the last.

    Args:
        found: metrics of all servers.
        switches: good versions that were seen to take over.
        refused: bad ones that were seen to be reported.
        servers: each of which has all of them.
    """
    loaded = found.total("torchlane_model_loads_total", result="loaded") / servers - INITIAL
    failed = found.total("torchlane_model_loads_total", result="failed") / servers
    problems = []
    if not switches <= loaded <= switches + UNSEEN:
        problems.append(f"{loaded:.0f} versions were loaded, {switches} seen to take over")
    if failed < refused:
        problems.append(f"{failed:.0f} versions failed to load, {refused} seen to be reported")
    return problems


def reconcile_after_kill(found: Scrape, told: Told, *, balanced: bool = False) -> list[str]:
    """A killed process takes with it what it had not told: nothing may be more than is known."""
    problems = []
    for (status, code), value in found.by("torchlane_requests_total", "status", "code").items():
        if balanced and status == REFUSED:
            continue
        known = told.requests[int(status), code] + told.unknown_requests
        if value > known:
            problems.append(f"requests {status} {code}: {value:.0f} counted, {known} at most sent")
    return problems


def reconcile_handler(found: Scrape, told: Told, acts: Acts, replaced: int) -> list[str]:
    """Items of the handlers and the ends of their processes; the servers must be idle.

    Args:
        found: metrics of all servers.
        told: what their clients know.
        acts: of the handlers.
        replaced: processes of versions that were replaced, whose ends are not counted then.
    """
    problems: list[str] = []
    for handler in HANDLERS:
        problems += _outcomes(found, told, handler, (*COUNTED, *OF_HANDLER))
    for cause in (*ENDS, "frames"):
        ended = found.total("torchlane_handler_restarts_total", cause=cause)
        most = len(acts.ended(cause))
        # Whoever leaves may save a process from taking too much memory.
        least = 0 if cause == "memory" else len(acts.ended_only(cause)) - replaced
        if not least <= ended <= most:
            problems.append(
                f"{ended:.0f} processes of handlers ended ({cause}), {least} to {most} had to"
            )
    return problems


def sick_replicas(ledgers: Mapping[str, Ledger]) -> int:
    """How often a replica was made to fail."""
    return sum(ledger.faults[each] for ledger in ledgers.values() for each in REPLICA_FAULTS)


def _replicas(found: Scrape, ledgers: Mapping[str, Ledger]) -> Iterator[str]:
    hung = sum(ledger.faults["hangs"] for ledger in ledgers.values())
    for kind, wanted in (("hung", hung), ("error", sick_replicas(ledgers) - hung), ("lost", 0)):
        value = found.total("torchlane_replica_faults_total", kind=kind)
        if value != wanted:
            yield f"replicas that broke, {kind}: {value:.0f} counted, {wanted} made to"


def _requests(found: Scrape, told: Told, *, balanced: bool) -> Iterator[str]:
    counted = found.by("torchlane_requests_total", "status", "code")
    known = {k: n for k, n in told.requests.items() if k[1] not in NOT_COUNTED}
    if balanced:
        counted = {k: n for k, n in counted.items() if k[0] != REFUSED}
        known = {k: n for k, n in known.items() if str(k[0]) != REFUSED}
    if not 0 <= sum(counted.values()) - sum(known.values()) <= told.unknown_requests:
        yield (
            f"requests: {sum(counted.values()):.0f} counted, {sum(known.values())} answered "
            f"and {told.unknown_requests} unknown"
        )
    for (state, code), value in counted.items():
        most = told.requests[200, code] + told.unknown_streams  # nothing else fails with 200
        if state == "200" and code != "ok" and value > most:
            yield f"streams {code}: {value:.0f} counted, {most} at most"
    left, unread = counted.get(("200", "abandoned"), 0), told.unread_streams
    # The buffers of a balancer, with those of its sockets, may hold all of a stream.
    if unread >= MANY and left < unread * BEGUN and not balanced:
        yield f"streams that were left: {left:.0f} counted, {unread} were not read"
    for (status, code), answered in known.items():
        value = counted.get((str(status), code), 0)
        if not answered <= value <= answered + told.unknown_requests:
            yield (
                f"requests {status} {code}: {value:.0f} counted, {answered} answered "
                f"and {told.unknown_requests} unknown"
            )


def _outcomes(found: Scrape, told: Told, model: str, outcomes: Sequence[str]) -> Iterator[str]:
    unknown = told.unknown_items[model]
    for outcome in outcomes:
        answered = told.items[model, outcome]
        value = found.total("torchlane_items_total", model=model, outcome=outcome)
        if not answered <= value <= answered + unknown:
            yield (
                f"items of {model}, {outcome}: {value:.0f} counted, {answered} answered "
                f"and {unknown} unknown"
            )


def _items(found: Scrape, told: Told, model: str) -> Iterator[str]:
    yield from _outcomes(found, told, model, COUNTED)
    unknown = told.unknown_items[model]
    ended = found.total("torchlane_items_total", model=model)
    accepted = found.total("torchlane_cache_lookups_total", model=model)
    known = sum(told.items[model, outcome] for outcome in COUNTED)
    if not 0 <= ended - known <= unknown:
        yield f"items of {model}: {ended:.0f} ended, {known} answered and {unknown} unknown"
    if ended != accepted:
        yield f"items of {model}: {accepted:.0f} were accepted, {ended:.0f} have an outcome"


def _batches(found: Scrape, ledger: Ledger, model: str) -> Iterator[str]:
    def counted(name: str) -> float:
        return found.total(f"torchlane_{name}", model=model)

    exact = {
        "batch_size_count": ledger.batches,
        "batch_size_sum": ledger.items,
        "batch_splits_total": ledger.splits,
        "out_of_memory_total": ledger.out_of_memory,
    }
    for name, wanted in exact.items():
        if counted(name) != wanted:
            yield f"{name} of {model}: {counted(name):.0f} counted, {wanted} seen by the backends"


def _moves(found: Scrape, ledger: Ledger, model: str, unknown: int) -> Iterator[str]:
    """Of a struck batch everything moves, but what nobody waits for any more: some, not most."""
    moved = found.total("torchlane_items_moved_total", model=model)
    cut = found.total("torchlane_batch_size_sum", model=model)
    dropped = cut - found.total("torchlane_items_computed_total", model=model) - moved
    # Who waits for a forward that hangs has given up before it is found out.
    most = ledger.struck + len(ledger.hung)
    fits = 0 <= dropped <= unknown and 0 <= moved + dropped <= most
    few = ledger.struck >= MANY and moved < ledger.struck / 2 and model != IMPATIENT
    if not fits or few or (ledger.struck and not moved + dropped):
        yield f"{model}: {moved:.0f} items moved, {dropped:.0f} dropped, {ledger.struck} struck"


def _failures(told: Told, ledger: Ledger, model: str) -> Iterator[str]:
    uninjected = told.failed.get(model, set()) - ledger.failed_alone
    if uninjected:
        yield f"{model}: items {sorted(uninjected)[:10]} are said to have failed, and did not"
