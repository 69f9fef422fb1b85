"""The access log: a line for each request that failed or was slow, and for a share of the others.

Nothing is recorded before that. A line has no header, path or query of the client, and a bounded
part of the model's name; `app/logs.py` escapes what is not printable.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from app.telemetry.gate import SamplingGate
from app.telemetry.line_rate import LineRate
from app.telemetry.tracing import CLIENT_GONE, RequestTrace
from app.types import CacheCounts

LOG = structlog.get_logger(__name__)

FAILED: Final = 400  # the lowest status of an error
SLOW_S: Final = 1.0
BURST, PER_S = 100.0, 20.0  # lines about failed and slow requests
GONE_BURST, GONE_PER_S = 10.0, 1.0  # about those whose clients disconnected, often all at once
OTHERS_BURST, OTHERS_PER_S = 1000.0, 1000.0  # and about others
# About others if only a share is logged: a line takes as long as several of the cheapest requests.
SAMPLE_BURST, SAMPLE_PER_S = 10.0, 50.0
TOLD_AFTER_S = 1.0  # lines that were left out
MOST_OF_NAME = 100  # characters of a model's name that a client asked for
MOST_DIGITS = 9  # of a version that it asked for
TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
NO_FIELDS: Final[Mapping[bytes, bytes]] = {}


class AccessLog:
    """Chooses the requests that are logged, and writes their lines; used on the event loop.

    Args:
        share: the logged share of the requests that are neither failed nor slow; None: nothing is
            logged.
        key_name: returns the name of the API key in headers; empty if there is none.
        clock: monotonic, in seconds.
        later: calls a function after a number of seconds.
    """

    __slots__ = (
        "_clock",
        "_enabled",
        "_failures",
        "_gate",
        "_gone",
        "_is_sample",
        "_key_name",
        "_later",
        "_others",
        "_reports_omissions",
    )

    def __init__(
        self,
        share: float | None,
        key_name: Callable[[Mapping[bytes, bytes]], str],
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._enabled = share is not None
        self._gate = SamplingGate((), share, leaves_out=False) if share else None
        self._key_name = key_name
        self._clock = clock
        self._later = later or _later
        self._failures = LineRate(BURST, PER_S)
        self._gone = LineRate(GONE_BURST, GONE_PER_S)
        self._is_sample = share is not None and 0.0 < share < 1.0
        self._others = (
            LineRate(SAMPLE_BURST, SAMPLE_PER_S)
            if self._is_sample
            else LineRate(OTHERS_BURST, OTHERS_PER_S)
        )
        self._reports_omissions = False

    def wants(self, status: int, seconds: float) -> bool:
        """Whether to write a line about a request that has ended.

        Args:
            status: the status of its answer.
            seconds: how long it took; 0 if it is expected to be long.
        """
        if not self._enabled:
            return False
        if status == CLIENT_GONE:
            rate = self._gone
        elif status >= FAILED or seconds >= SLOW_S:
            rate = self._failures
        elif self._gate is not None and self._gate.may_want(NO_FIELDS):
            if self._is_sample:  # which may be smaller: no line tells of it
                return self._others.allows(self._clock())
            rate = self._others
        else:
            return False
        if rate.allows(self._clock()):
            return True
        if not self._reports_omissions:
            self._reports_omissions = True
            self._later(TOLD_AFTER_S, self.tell)
        return False

    def write(self, record: RequestTrace, fields: Mapping[bytes, bytes]) -> None:
        """Write the line about a request.

        Args:
            record: the record of the request, which has ended.
            fields: its headers, with names in lower case.
        """
        line: dict[str, object] = {"request_id": record.request_id.decode("latin-1")}
        if trace_id := record.trace_id or _trace_id(fields):
            line["trace_id"] = trace_id
        if record.method:
            line["method"] = record.method
        if record.route:
            line["route"] = record.route
        if record.model is not None:
            line["model"], line["version"] = record.model.name, record.model.version
        elif record.name:
            line["model"] = record.name[:MOST_OF_NAME]
            if record.version.isdecimal() and len(record.version) <= MOST_DIGITS:
                line["version"] = int(record.version)
        line["status"], line["code"] = record.status, record.outcome
        if not record.method:
            line["grpc_status"] = record.rpc_status
        line["ms"] = round(1000 * (record.ended - record.began), 3)
        if record.batch_items:
            line["queue_ms"], line["batch"] = round(1000 * record.queue_s, 3), record.batch_items
        if record.items:
            line["items"] = record.items
        if record.cache is not None:
            line["cache"] = "memo" if record.is_repeat else _found(record.cache)
        line["bytes_in"], line["bytes_out"] = record.bytes_in, record.bytes_out
        if name := self._key_name(fields):
            line["key"] = name
        LOG.info("request", **line)

    def tell(self) -> None:
        """Log how many lines were left out since the last call, if any."""
        self._reports_omissions = False
        rates = [self._failures, self._gone]
        if not self._is_sample:
            rates.append(self._others)
        if lines := sum(each.take_left_out() for each in rates):
            LOG.warning("requests_not_logged", lines=lines)


def _later(seconds: float, act: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, act)


def _trace_id(fields: Mapping[bytes, bytes]) -> str:
    """The id of the caller's trace; empty if its headers name none."""
    match = TRACEPARENT.fullmatch(fields.get(b"traceparent", b""))
    return match[1].decode("ascii") if match else ""


def _found(counts: CacheCounts) -> str:
    """How the items were found: one word if it was the same for all, else with numbers."""
    ways = [(name, number) for name, number in counts._asdict().items() if number]
    if len(ways) == 1:
        return ways[0][0]
    return ", ".join(f"{name}={number}" for name, number in ways)
