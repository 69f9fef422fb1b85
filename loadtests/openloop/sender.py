"""Runs one trial: draws the requests, sends them when due, and judges every answer afterwards."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
import orjson
import uvloop

from loadtests.openloop.address import ServerAddress
from loadtests.openloop.connection import Response
from loadtests.openloop.generator import NO_ANSWER, RequestLog, TrialLimits, TrialTooLarge, send
from loadtests.traffic.calls import Expectation, LoadCall
from loadtests.traffic.target import with_key
from loadtests.traffic.workloads import Draw
from models.tensors import Array

MAX_REQUEST_BYTES = 512 * 1024 * 1024  # of one trial, all in memory before it starts
MARGIN = 0.9  # because the number of requests and their sizes vary
LEAST_REQUEST_BYTES = 64  # of the shortest request, to reject too many before drawing any
TIMEOUT_STATUSES = (408, 504)  # accepted, and dropped after the deadline
REJECTION_STATUSES = (429, 503)  # at once
SERVER_FAULT = 500
ArrivalKind = Literal["poisson", "uniform"]


class Kind(IntEnum):
    """The outcome of a request."""

    RIGHT = 0
    WRONG = 1  # an answer with wrong content, or a valid request that was rejected as invalid
    GIVEN_UP = 2  # 408, 504, or no answer until the generator's patience was over
    REFUSED = 3  # 429, or 503 unless its reason is not `overloaded`
    ERROR = 4  # other statuses from 500, or a broken connection


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """The plan of one trial.

    Attributes:
        settle_s: load before the measured time.
        seed: of the arrivals.
    """

    rate_per_s: float
    settle_s: float
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The requests of a trial, one entry each, in order of arrival; arrays of shape (n,).

    Attributes:
        due_s: intended arrivals, from the start of the settling time.
        done_s: when the answer was complete or the request was abandoned.
        lag_s: how late the generator processed it; NaN if it never did.
        hint_ms: `retry_after_ms` of a rejection; NaN if there is none.
        reason: what is wrong; empty if nothing.
    """

    due_s: Array
    done_s: Array
    lag_s: Array
    kind: Array
    hint_ms: Array
    reason: Sequence[str]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of the generator.

    Attributes:
        cpu: share of one core.
        connections: number of opened ones.
        starved: requests that found all allowed connections in use.
    """

    cpu: float
    connections: int
    starved: int


class Sender:
    """Sends the calls of a workload to one server, and judges the answers.

    Args:
        address: of the server.
        draw: the source of calls.
        arrivals: their kind.
        limits: of connections and patience.
        headers: of all requests, in addition to those of the calls.
    """

    def __init__(
        self,
        address: ServerAddress,
        draw: Draw,
        arrivals: ArrivalKind,
        limits: TrialLimits,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._address, self._draw, self._arrivals = address, draw, arrivals
        self._limits, self._headers = limits, headers or {}
        self._heads: dict[tuple[str, ...], bytes] = {}
        self._due_s: Array = np.empty(0)
        self._requests: list[bytes] = []
        self._expectations: list[Expectation] = []  # without the calls, whose bodies are rendered

    def prepare(self, plan: TrialPlan) -> None:
        """Draw arrivals and requests before the measurement.

        Raises:
            TrialTooLarge: if the requests are more than memory should hold.
        """
        whole_s = plan.settle_s + plan.seconds
        _check_size(plan.rate_per_s * whole_s * LEAST_REQUEST_BYTES)
        self._due_s = _schedule(self._arrivals, plan.rate_per_s, whole_s, plan.seed)
        self._requests, self._expectations = [], []  # those of the trial before make room
        size = 0
        for _ in self._due_s:
            call = self._draw()
            self._expectations.append(call.expected)
            self._requests.append(self._render(call))
            size += len(self._requests[-1])
            _check_size(size)
        gc.collect()  # now, because there is no collection while requests are sent

    @property
    def request_bytes(self) -> float:
        """Mean size of the prepared requests; 0 if there are none."""
        return sum(map(len, self._requests)) / max(1, len(self._requests))

    def _render(self, call: LoadCall) -> bytes:
        key = (call.path, *call.headers, *call.headers.values())
        if (head := self._heads.get(key)) is None:
            lines = [f"POST {call.path} HTTP/1.1", f"Host: {self._address}"]
            headers = with_key({**call.headers, **self._headers})
            lines += (f"{name}: {value}" for name, value in headers.items())
            head = self._heads[key] = "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")
        return b"%b%d\r\n\r\n%b" % (head, len(call.body), call.body)

    def run(self, plan: TrialPlan) -> tuple[Outcomes, Cost]:
        self.prepare(plan)
        return self.send()

    def send(self) -> tuple[Outcomes, Cost]:
        """Send the prepared requests and judge the answers.

        Raises:
            Unreachable: if no server answers.
            TrialTooLarge: if the answers need too much memory.
        """
        log = uvloop.run(send(self._address, self._due_s, self._requests, self._limits))
        cost = Cost(
            cpu=log.cpu_s / log.span_s if log.span_s > 0 else 0.0,
            connections=log.connections,
            starved=log.starved,
        )
        return self._judge(log), cost

    def _judge(self, log: RequestLog) -> Outcomes:
        n = len(log.due_s)
        late = log.done_s - log.due_s > self._limits.patience_s
        kind, hint_ms = np.zeros(n, np.int8), np.full(n, np.nan)
        reason = [
            (reply and expected.problem(reply.status, reply.headers, reply.body)) or ""
            for expected, reply in zip(self._expectations, log.responses, strict=True)
        ]
        for at, response in enumerate(log.responses):
            if response is None:
                reason[at] = log.faults.get(at, NO_ANSWER)
                kind[at] = Kind.GIVEN_UP if reason[at] == NO_ANSWER else Kind.ERROR
            elif reason[at]:
                details = (
                    _rejection_fields(response) if response.status in REJECTION_STATUSES else {}
                )
                kind[at] = _kind(response.status, details)
                hint = details.get("retry_after_ms")
                hint_ms[at] = hint if isinstance(hint, int | float) else np.nan
            elif late[at]:
                kind[at], reason[at] = Kind.GIVEN_UP, NO_ANSWER
        lag_s = log.noticed_s - log.due_s
        return Outcomes(log.due_s, log.done_s, lag_s, kind, hint_ms, reason)


def longest_s(rate_per_s: float, request_bytes: float) -> float:
    """Return for how many seconds memory should hold requests of this mean size, with a margin."""
    return MARGIN * MAX_REQUEST_BYTES / (rate_per_s * max(LEAST_REQUEST_BYTES, request_bytes))


def _schedule(kind: ArrivalKind, rate_per_s: float, seconds: float, seed: int) -> Array:
    """Draw arrival times with a constant mean rate, so that no answer can delay a request.

    Args:
        kind: `poisson`: independent users, exponential gaps; `uniform`: equal gaps.
        rate_per_s: the mean rate.
        seconds: how long.
        seed: of the random gaps.

    Returns:
        ascending seconds from the start, float64 of shape (n,), all below `seconds`.
    """
    if kind == "uniform":
        return np.arange(round(rate_per_s * seconds), dtype=np.float64) / rate_per_s
    rng = np.random.default_rng(seed)
    # Given their number, the arrivals of a Poisson process are independent and uniform.
    number = rng.poisson(rate_per_s * seconds)
    return np.sort(rng.random(number)) * seconds


def _check_size(size_bytes: float) -> None:
    if size_bytes > MAX_REQUEST_BYTES:
        raise TrialTooLarge(
            f"the requests of a trial need more than {MAX_REQUEST_BYTES >> 20} MiB; lower "
            "--max-rate (or --rate, --seconds)"
        )


def _kind(status: int, details: dict[str, object]) -> Kind:
    """Classify a wrong answer."""
    if status in TIMEOUT_STATUSES:
        return Kind.GIVEN_UP
    if status in REJECTION_STATUSES:
        return Kind.REFUSED if details.get("code", "overloaded") == "overloaded" else Kind.ERROR
    return Kind.ERROR if status >= SERVER_FAULT else Kind.WRONG


def _rejection_fields(response: Response) -> dict[str, object]:
    """Parse the object in a rejection's body; empty if there is none."""
    try:
        fields = orjson.loads(response.body)
    except orjson.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}
