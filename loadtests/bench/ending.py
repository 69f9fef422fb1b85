"""How a measurement with servers of its own ends: with results, too early, or by a signal."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from loadtests.bench.answers import CheckError
from loadtests.bench.bodies import BodiesError
from loadtests.bench.environments import SetupError
from loadtests.bench.own_models import ModelError
from loadtests.bench.servers import ServerError
from loadtests.bench.wrk import LoadError
from loadtests.reports import OutputError

FAILURES = (
    BodiesError,
    CheckError,
    LoadError,
    ModelError,
    OutputError,
    ServerError,
    SetupError,
)
FAILED, INTERRUPTED = 1, 130


def ended(measure: Callable[[], object]) -> tuple[str | None, int]:
    """Measure; why it ended before its end, if it did, and the exit code."""
    try:
        measure()
    except FAILURES as error:
        return str(error), FAILED
    except KeyboardInterrupt:
        return "interrupted", INTERRUPTED
    return None, 0


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """End servers on SIGTERM and SIGHUP too: those that sleep would be left behind."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {each: signal.signal(each, leave) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
