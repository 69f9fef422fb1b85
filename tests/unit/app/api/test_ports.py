"""Which descriptors connections may take, and how often a lack of them is logged."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from app.api.ports import RESERVE, Shortage, is_free_for_connection


@contextlib.contextmanager
def left(count: int) -> Iterator[int]:
    """Let this process open `count` more descriptors only; yields one that is open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as known:
        highest = max(int(each) for each in os.listdir("/proc/self/fd"))
        with contextlib.ExitStack() as stack:
            while (taken := os.dup(known.fileno())) < max(highest, 8 * RESERVE):  # no gaps
                stack.callback(os.close, taken)
            stack.callback(os.close, taken)
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 1 + count, before[1]))
            yield known.fileno()


def test_connections_leave_descriptors_for_files() -> None:
    with left(RESERVE + 1) as known:
        assert is_free_for_connection(known)
    with left(RESERVE) as known:
        assert not is_free_for_connection(known)
        assert is_free_for_connection(known, last=True)
    with left(0) as known:
        assert not is_free_for_connection(known, last=True)


def test_a_shortage_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("app.api.ports.time.monotonic", lambda: now)
    shortage = Shortage()
    with capture_logs() as logs:
        for _ in range(100):
            shortage.tell()
            now += 1.0
    assert [each["times"] for each in logs] == [1, 60]
    assert {each["reason"] for each in logs} == {"too many open files"}
