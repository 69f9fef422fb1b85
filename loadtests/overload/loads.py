"""What came of one load: who was answered in time, who late, who was refused, and how quickly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import orjson

from loadtests.openloop.generator import UNANSWERED, Fired
from loadtests.overload.hints import NO_HINTS, Hints, seconds_until_done
from loadtests.wire import Response
from models.tensors import Array

OK = 200
REFUSALS = (429, 503)  # at once, or never
GIVEN_UP = (408, 504)  # taken, and dropped when the time was over
LAG_SHARE = 0.1  # of the deadline: a lag above it is a part of the latencies that matters
BUSY_CPU = 0.9  # of a core: a generator above it has no time left to be punctual


@dataclass(frozen=True, slots=True)
class Offer:
    """One load.

    Attributes:
        times: of the capacity that was found.
        rate_per_s: on average; Poisson arrivals.
        lead_s: at its beginning nothing is counted: connections are made, and queues fill.
        seconds: that are counted, after the lead.
        deadline_s: counted from the moment at which a request was due.
    """

    times: float
    rate_per_s: float
    lead_s: float
    seconds: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """What came of it, of the requests that are counted.

    Attributes:
        offered_per_s: requests.
        in_time: right answers within the deadline.
        late: right answers after it, 408 and 504, and no answer at all until the end.
        refused: 429, and 503 where it does not say another reason.
        errors: other statuses and broken connections.
        wrong: answers of another content than the right one, late ones too.
        judged: answers whose content was compared.
        p50_ms, p99_ms: from the due moment, of all that were taken: in time, late or wrong.
        p99_refused_ms: the same of those that were refused; None without any.
        lag_p99_ms: by how much the generator sent late.
        generator_cpu: share of its core that it took.
        starved: requests that found no connection free and no further one allowed.
        cpu_us: of all processes of the server, user and system, per request of whatever outcome.
        stalled: share of the time before and after in which the server's core did not run what
            wanted it, without any load.
        ideal_refused: share that a server without any variance would have refused, of the same
            arrivals; None where it is not known.
        first_error: the first of `errors`, for people.
    """

    offer: Offer
    offered_per_s: float
    requests: int
    in_time: int
    late: int
    refused: int
    errors: int
    wrong: int
    judged: int
    p50_ms: float | None
    p99_ms: float | None
    p99_refused_ms: float | None
    lag_p99_ms: float
    generator_cpu: float
    starved: int
    hints: Hints
    cpu_us: float = 0.0
    stalled: float = 0.0
    ideal_refused: float | None = None
    first_error: str = ""

    @property
    def goodput_per_s(self) -> float:
        """Right answers within the deadline."""
        return self.in_time / self.offer.seconds

    @property
    def refused_share(self) -> float:
        """Of all requests."""
        return self.refused / self.requests if self.requests else 0.0

    @property
    def doubt(self) -> str | None:
        """Why this load is none that was really offered; None: it was."""
        if self.generator_cpu > BUSY_CPU:
            return f"the generator took {self.generator_cpu:.0%} of its core"
        if self.lag_p99_ms > LAG_SHARE * self.offer.deadline_s * 1000:
            return f"the generator sent 1 % of the requests {self.lag_p99_ms:.0f} ms late"
        if self.starved:
            return f"{self.starved} requests found no connection free"
        return None


def load_of(offer: Offer, fired: Fired, wrong: Mapping[int, str]) -> Load:
    """The figures of a load.

    Args:
        offer: what was asked for.
        fired: what the generator has.
        wrong: what is wrong with the answers 200 that are not right, by index.
    """
    kinds = np.array([_kind(each, fired.faults.get(n)) for n, each in enumerate(fired.responses)])
    is_wrong = np.zeros(len(kinds), dtype=bool)
    is_wrong[list(wrong)] = True
    counted = fired.due_s >= offer.lead_s
    latency_s = fired.done_s - fired.due_s
    good = (kinds == "answered") & ~is_wrong
    taken, refused = np.isin(kinds, ("answered", "late")), kinds == "refused"
    in_time = good & (latency_s <= offer.deadline_s)
    errors = np.flatnonzero(counted & (kinds == "error"))
    lag_s = np.nan_to_num(fired.noticed_s - fired.due_s)[counted]
    n = int(counted.sum())
    return Load(
        offer=offer,
        offered_per_s=n / offer.seconds,
        requests=n,
        in_time=int((counted & in_time).sum()),
        late=int((counted & taken & ~in_time & ~is_wrong).sum()),
        refused=int((counted & refused).sum()),
        errors=len(errors),
        wrong=int((counted & is_wrong).sum()),
        judged=int((counted & (kinds == "answered")).sum()),
        p50_ms=_percentile_ms(latency_s[counted & taken], 50),
        p99_ms=_percentile_ms(latency_s[counted & taken], 99),
        p99_refused_ms=_percentile_ms(latency_s[counted & refused], 99),
        lag_p99_ms=_percentile_ms(lag_s, 99) or 0.0,
        generator_cpu=fired.cpu_s / fired.span_s if fired.span_s else 0.0,
        starved=fired.starved,
        hints=_hints(fired, taken, np.flatnonzero(counted & refused)),
        first_error=_told(fired, int(errors[0])) if len(errors) else "",
    )


def ideal_refused(due_s: Array, lead_s: float, service_s: float, deadline_s: float) -> float:
    """The share that must be refused if every item takes equally long, by itself.

    It takes who can be answered in time, in the order in which they come, and knows everything.
    """
    free_s, refused, counted = 0.0, 0, 0
    for due in due_s.tolist():
        done_s = max(due, free_s) + service_s
        is_late = done_s - due > deadline_s
        free_s = free_s if is_late else done_s
        counted += due >= lead_s
        refused += is_late and due >= lead_s
    return refused / counted if counted else 0.0


def _kind(response: Response | None, fault: str | None) -> str:
    if response is None:
        return "late" if fault == UNANSWERED else "error"
    if response.status == OK:
        return "answered"
    if response.status in GIVEN_UP:
        return "late"
    if response.status in REFUSALS:
        return "refused" if _said(response).get("code", "overloaded") == "overloaded" else "error"
    return "error"


def _hints(fired: Fired, taken: Array, refused: Array) -> Hints:
    """Of the refusals that say `retry_after_ms`."""
    told = [_said(fired.responses[index]).get("retry_after_ms") for index in refused.tolist()]
    says = [index for index, ms in enumerate(told) if isinstance(ms, int | float)]
    if not says:
        return NO_HINTS
    told_ms = np.array([told[index] for index in says], np.float64)
    return Hints(told_ms, seconds_until_done(fired.done_s, taken, refused[says]) * 1000)


def _said(response: Response | None) -> dict[str, object]:
    """The object in a refusal's body; empty where it is none."""
    try:
        found = orjson.loads(response.body) if response is not None else {}
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _percentile_ms(seconds: Array, percent: float) -> float | None:
    return float(np.percentile(seconds, percent) * 1000) if len(seconds) else None


def _told(fired: Fired, index: int) -> str:
    response = fired.responses[index]
    if response is None:
        return fired.faults.get(index, "no answer")
    return f"{response.status}: {response.body[:200].decode(errors='replace')}"
