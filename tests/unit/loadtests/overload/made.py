"""What a generator might bring home, made by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import orjson

from loadtests.openloop.generator import UNANSWERED, Fired
from loadtests.overload.hints import NO_HINTS, Hints
from loadtests.overload.loads import Load, Offer
from loadtests.overload.measuring import Measured
from loadtests.wire import Response

OFFER = Offer(times=2.0, rate_per_s=10.0, lead_s=0.0, seconds=1.0, deadline_s=0.1)
FINE = Load(
    offer=OFFER,
    offered_per_s=10.0,
    requests=1000,
    in_time=10,
    late=0,
    refused=0,
    errors=0,
    wrong=0,
    judged=10,
    p50_ms=20.0,
    p99_ms=90.0,
    p99_refused_ms=5.0,
    lag_p99_ms=1.0,
    generator_cpu=0.1,
    starved=0,
    hints=NO_HINTS,
)


def refusal(retry_after_ms: float | None = None, code: str = "overloaded") -> Response:
    body = {"error": "later", "code": code, "retry_after_ms": retry_after_ms}
    return Response(503, orjson.dumps(body))


def fired(*requests: tuple[float, float, int | Response | None]) -> Fired:
    """Of (due, done, status or response): None has no answer, 0 has a broken connection."""
    due_s = np.array([due for due, *_ in requests])
    responses: list[Response | None] = []
    faults: dict[int, str] = {}
    for index, (*_, what) in enumerate(requests):
        if isinstance(what, int):
            faults |= {} if what else {index: "connection broken"}
            responses.append(Response(what, b"") if what else None)
        else:
            faults |= {} if what else {index: UNANSWERED}
            responses.append(what)
    done_s = np.array([done for _, done, _ in requests])
    return Fired(due_s, due_s + 0.001, done_s, responses, faults, cpu_s=0.5, span_s=1.0)


def load(times: float, **changes: object) -> Load:
    offer = dataclasses.replace(OFFER, times=times)
    return dataclasses.replace(FINE, **{"offer": offer, **changes})  # type: ignore[arg-type]


def measured(case: str, *loads: Load, server: str = "torchlane") -> Measured:
    return Measured(case, server, 110.0, 100.0, None, loads)


def hints(*pairs: tuple[float, float]) -> Hints:
    """Of (told, true), in milliseconds."""
    return Hints(np.array([told for told, _ in pairs]), np.array([true for _, true in pairs]))
