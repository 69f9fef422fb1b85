"""One trial: draw the requests, fire them when they are due, check every answer afterwards."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import uvloop

from loadtests.capacity.trial import Cost, Outcomes
from loadtests.openloop.address import Address
from loadtests.openloop.arrivals import ArrivalKind, schedule
from loadtests.openloop.generator import UNANSWERED, Fired, Limits, TrialTooLarge, fire
from loadtests.traffic.calls import Call, Expectation
from loadtests.traffic.credentials import with_key
from models.tensors import Array

MAX_REQUEST_BYTES = 512 * 1024 * 1024  # of one trial; they are all in memory before it starts
LEAST_REQUEST_BYTES = 64  # of the shortest one: of more than fit even so, none is drawn
OVERLOAD = (429, 503, 504)  # refused, not wrong: the server says that it cannot serve this now
SERVER_FAULT = 500
EMPTY: Array = np.empty(0)


class Draws(Protocol):
    """A workload, as far as a trial needs it."""

    def draw(self) -> Call:
        """Draw the next request."""


@dataclass(frozen=True, slots=True)
class Shot:
    """What one process sends in one trial.

    Attributes:
        rate_per_s: mean rate of the arrivals.
        settle_s: loaded before the measured time.
        seconds: measured.
        seed: of the arrivals.
    """

    rate_per_s: float
    settle_s: float
    seconds: float
    seed: int


class Shooter:
    """Sends the requests of one workload to one server.

    Args:
        address: of the server.
        workload: gives the requests.
        arrivals: of which kind.
        limits: of connections and patience.
    """

    def __init__(
        self, address: Address, workload: Draws, arrivals: ArrivalKind, limits: Limits
    ) -> None:
        self._address = address
        self._workload, self._arrivals, self._limits = workload, arrivals, limits
        self._heads: dict[tuple[str, ...], bytes] = {}
        self._shot = Shot(0, 0, 0, 0)
        self._due_s = EMPTY
        self._expected: list[Expectation] = []  # without the calls: their bodies are rendered
        self._requests: list[bytes] = []

    def prepare(self, shot: Shot) -> None:
        """Draw arrivals and requests, while nothing is measured.

        Raises:
            TrialTooLarge: if the requests are more than memory should hold.
        """
        whole_s = shot.settle_s + shot.seconds
        self._shot = shot
        self._expected, self._requests = [], []  # those of the trial before make room
        self._check_size(shot.rate_per_s * whole_s * LEAST_REQUEST_BYTES)
        self._due_s = schedule(self._arrivals, shot.rate_per_s, whole_s, shot.seed)
        size = 0
        for _ in self._due_s:
            call = self._workload.draw()
            self._expected.append(call.expected)
            self._requests.append(self._render(call))
            size += len(self._requests[-1])
            self._check_size(size)
        gc.collect()  # now, as firing does without

    def _check_size(self, size_bytes: float) -> None:
        if size_bytes > MAX_REQUEST_BYTES:
            shot = self._shot
            raise TrialTooLarge(
                f"the requests of {shot.settle_s + shot.seconds:.1f} s at {shot.rate_per_s:,.4g}/s "
                f"need more than {MAX_REQUEST_BYTES >> 20} MiB; lower --max-rate (or --rate, "
                "--seconds), or share the rate with --processes"
            )

    def fire(self, start_s: float | None = None) -> tuple[Outcomes, Cost]:
        """Send what was prepared, and judge the answers.

        Args:
            start_s: when, on `time.perf_counter`; None: now.

        Raises:
            Unreachable: if nobody answers.
            TrialTooLarge: if the answers are more than memory should hold.
        """
        fired = uvloop.run(fire(self._address, self._due_s, self._requests, self._limits, start_s))
        cost = Cost(
            cpu=fired.cpu_s / fired.span_s if fired.span_s > 0 else 0.0,
            connections=fired.connections,
            starved=fired.starved,
            unopened=sum(fired.due_s[index] >= self._shot.settle_s for index in fired.unopened),
        )
        return self._judge(fired), cost

    def _judge(self, fired: Fired) -> Outcomes:
        """Failures and wrong answers; the requests of the settling time are only checked."""
        first = int(np.searchsorted(fired.due_s, self._shot.settle_s))
        latency_s = fired.done_s - fired.due_s
        failures, wrong, refused, served = {}, {}, set(), 0
        from_s, until_s = self._shot.settle_s, self._shot.settle_s + self._shot.seconds
        for index, (expected, response) in enumerate(
            zip(self._expected, fired.responses, strict=True)
        ):
            at = index - first
            if response is None:
                failures[at] = fired.faults.get(index, UNANSWERED)
                continue
            problem = expected.problem(response.status, response.headers(), response.body)
            if problem is None:
                served += from_s <= fired.done_s[index] < until_s
                if latency_s[index] > self._limits.patience_s:
                    failures[at] = UNANSWERED
            elif response.status in OVERLOAD or response.status >= SERVER_FAULT:
                failures[at] = problem
                refused.add(at)
            else:
                wrong[at] = problem
        return Outcomes(
            latency_s=latency_s[first:],
            due_s=fired.due_s[first:] - self._shot.settle_s,
            lag_s=(fired.noticed_s - fired.due_s)[first:],
            failures={at: why for at, why in failures.items() if at >= 0},
            refused=frozenset(at for at in refused if at >= 0),
            wrong=wrong,
            served=int(served),
        )

    def _render(self, call: Call) -> bytes:
        key = (call.path, *call.headers, *call.headers.values())
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = _head(self._address, call.path, call.headers)
        return b"%b%d\r\n\r\n%b" % (head, len(call.body), call.body)


class Gun(Protocol):
    """What fires a trial: one shooter, or several processes of them."""

    def shoot(self, shot: Shot) -> tuple[Outcomes, Cost]:
        """Fire one trial of the whole rate."""


class OneProcess:
    """Fires from this process."""

    def __init__(self, shooter: Shooter) -> None:
        self._shooter = shooter

    def shoot(self, shot: Shot) -> tuple[Outcomes, Cost]:
        """See `Gun`."""
        self._shooter.prepare(shot)
        return self._shooter.fire()


def merged(parts: list[tuple[Outcomes, Cost]]) -> tuple[Outcomes, Cost]:
    """What several processes sent at the same time, as if one had."""
    outcomes = [part for part, _ in parts]
    due_s = np.concatenate([part.due_s for part in outcomes])
    order = np.argsort(due_s, kind="stable")
    place = np.empty(len(order), dtype=int)  # of each in the ascending order
    place[order] = np.arange(len(order))
    offsets = np.cumsum([0, *(len(part.due_s) for part in outcomes)]).tolist()

    def moved(index: int, offset: int) -> int:
        return int(place[offset + index]) if index >= 0 else index

    both = list(zip(outcomes, offsets, strict=False))
    return Outcomes(
        latency_s=np.concatenate([part.latency_s for part in outcomes])[order],
        due_s=due_s[order],
        lag_s=np.concatenate([part.lag_s for part in outcomes])[order],
        failures={moved(i, at): why for part, at in both for i, why in part.failures.items()},
        refused=frozenset(moved(i, at) for part, at in both for i in part.refused),
        wrong={moved(i, at): why for part, at in both for i, why in part.wrong.items()},
        served=sum(part.served for part in outcomes),
    ), Cost(
        cpu=max(cost.cpu for _, cost in parts),
        connections=sum(cost.connections for _, cost in parts),
        starved=sum(cost.starved for _, cost in parts),
        unopened=sum(cost.unopened for _, cost in parts),
    )


def _head(address: Address, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {address}"]
    lines += [f"{name}: {value}" for name, value in with_key(headers).items()]
    return "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")
