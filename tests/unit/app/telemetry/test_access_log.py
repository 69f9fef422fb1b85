"""Which requests get a line, what it says, and how many there may be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from app.telemetry.access_log import (
    BURST,
    GONE_BURST,
    GONE_PER_S,
    PER_S,
    SAMPLE_BURST,
    SLOW_S,
    TOLD_AFTER_S,
    AccessLog,
)
from app.telemetry.tracing import RequestTrace
from app.types import CacheCounts, ModelId

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


class Rig:
    """An access log with a clock and timers of the test's own."""

    def __init__(self, share: float | None) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.log = AccessLog(
            share,
            lambda fields: fields.get(b"x-api-key", b"").decode(),
            lambda: self.now,
            lambda seconds, act: self.timers.append((seconds, act)),
        )


def record(method: str = "POST", name: str = "") -> RequestTrace:
    made = RequestTrace(method, "/secret", "/models/{name}/predict", b"abc", 1.0)
    made.name = name
    return made


def line_of(made: RequestTrace, **fields: str) -> dict[str, object]:
    with capture_logs() as logs:
        Rig(1.0).log.write(made, {k.encode(): v.encode() for k, v in fields.items()})
    (line,) = logs
    return dict(line)


@pytest.mark.parametrize(
    ("share", "failed", "slow", "other"),
    [(None, False, False, False), (0.0, True, True, False), (1.0, True, True, True)],
    ids=["off", "errors", "all"],
)
def test_what_is_logged(share: float | None, failed: bool, slow: bool, other: bool) -> None:
    log = Rig(share).log
    assert [log.wants(status, 0.0) for status in (400, 499, 503)] == [failed] * 3
    assert log.wants(200, SLOW_S) is slow
    assert [log.wants(status, 0.9 * SLOW_S) for status in (200, 304)] == [other] * 2


def test_a_share_is_logged() -> None:
    rig = Rig(0.01)
    logged = 0
    for _ in range(100_000):
        rig.now += 0.01
        logged += rig.log.wants(200, 0.0)
    assert 800 < logged < 1200  # six standard deviations


def test_a_sample_has_a_limit_of_its_own_of_which_no_line_tells() -> None:
    rig = Rig(0.5)
    with capture_logs() as logs:
        assert sum(rig.log.wants(200, 0.0) for _ in range(10_000)) == SAMPLE_BURST
        rig.log.tell()
    assert not rig.timers
    assert not logs
    rig.now += 2
    assert sum(rig.log.wants(200, 0.0) for _ in range(10_000)) == SAMPLE_BURST
    assert rig.log.wants(503, 0.0)


def test_a_flood_has_a_limit_and_what_is_left_out_is_told_once() -> None:
    rig = Rig(1.0)
    asked = 0
    with capture_logs() as logs:
        for _ in range(2):
            logged = sum(rig.log.wants(422, 0.0) for _ in range(5000))
            assert logged == (BURST if not asked else PER_S)
            asked += 5000
            assert rig.log.wants(200, 0.0)  # which a flood of errors does not displace
            ((seconds, act),) = rig.timers
            rig.timers.clear()
            rig.now += seconds
            act()
        rig.log.tell()
    assert seconds == TOLD_AFTER_S == 1
    left_out = [5000 - BURST, 5000 - PER_S]
    assert [(each["event"], each["lines"]) for each in logs] == [
        ("requests_not_logged", lines) for lines in left_out
    ]


def test_clients_that_disconnect_together_leave_room_for_failures() -> None:
    rig = Rig(0.0)
    for most in (GONE_BURST, GONE_PER_S):
        assert sum(rig.log.wants(499, 2 * SLOW_S) for _ in range(500)) == most
        assert rig.log.wants(503, 0.0)
        rig.now += 1
    with capture_logs() as logs:
        rig.log.tell()
    assert [each["lines"] for each in logs] == [1000 - GONE_BURST - GONE_PER_S]


def test_a_line_with_everything() -> None:
    made = record()
    made.model, made.items, made.cache = ModelId("digits", 3, 7), 4, CacheCounts(1, 3)
    made.queue_s, made.batch_items, made.bytes_in, made.bytes_out = 0.0015, 8, 100, 200
    made.end(1.0125, 200, "ok")
    fields = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-00", "x-api-key": "mobile"}
    assert line_of(made, **fields) == {
        "event": "request",
        "log_level": "info",
        "request_id": "abc",
        "trace_id": TRACE_ID,
        "method": "POST",
        "route": "/models/{name}/predict",
        "model": "digits",
        "version": 3,
        "status": 200,
        "code": "ok",
        "ms": 12.5,
        "queue_ms": 1.5,
        "batch": 8,
        "items": 4,
        "cache": "hit=1, miss=3",
        "bytes_in": 100,
        "bytes_out": 200,
        "key": "mobile",
    }


def test_a_line_with_little() -> None:
    made = RequestTrace("", "", "", b"abc", 1.0)
    made.bytes_out = 7  # which nobody received
    made.end(1.5, 499, "abandoned")
    assert line_of(made, traceparent=f"00-{TRACE_ID}-none") == {
        "event": "request",
        "log_level": "info",
        "request_id": "abc",
        "status": 499,
        "code": "abandoned",
        "grpc_status": "CANCELLED",
        "ms": 500.0,
        "bytes_in": 0,
        "bytes_out": 0,
    }


@pytest.mark.parametrize(
    ("counts", "repeat", "shown"),
    [
        (CacheCounts(2), False, "hit"),
        (CacheCounts(0, 2), False, "miss"),
        (CacheCounts(0, 0, 2), False, "joined"),
        (CacheCounts(2), True, "memo"),
        (CacheCounts(1, 2, 3), False, "hit=1, miss=2, joined=3"),
    ],
)
def test_how_items_were_found(counts: CacheCounts, repeat: bool, shown: str) -> None:
    made = record()
    made.cache, made.is_repeat = counts, repeat
    made.end(2.0, 200, "ok")
    assert line_of(made)["cache"] == shown


def test_an_unknown_model_has_a_bounded_name() -> None:
    made = record(name="x" * (1 << 20))
    made.version = "9" * 1000
    made.end(2.0, 404, "model_not_found")
    line = line_of(made)
    assert len(str(line)) < 500
    assert "version" not in line
    made.version = "12"
    assert line_of(made)["version"] == 12
